// Attention: every pixel (or channel) becomes a weighted sum of others. All images are blocked fp32, each may be a
// slice of its own; `workspace` has the bytes that the function *_workspace_bytes names for the same shapes.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

// Criss-cross attention (Huang et al. 2019). A pixel (y,x) attends the W pixels of its row, itself included, then the
// H-1 others of its column from top to bottom: weights w (N,H+W-1,H,W).
//   ca_weight           w = t(y,x) . f(attended pixel);  t, f (N,C,H,W)
//   ca_map              y = sum over attended pixels of w * g;  g, y (N,C,H,W)
//   ca_map_transposed   df(pixel) = sum over the pixels that attend it of w * t
// Each is the gradient of the others. `image` is any of the operands (N,C,H,W).
CONVOY_CPU_KERNELS(size_t criss_cross_workspace_bytes(const View& image);
                   void ca_weight(const View& t, const View& f, const View& w, float* workspace);
                   void ca_map(const View& w, const View& g, const View& y, float* workspace);
                   void ca_map_transposed(const View& w, const View& t, const View& df, float* workspace);)

// Position attention: y(i) = sum over pixels j of softmax_j(q(i) . k(j)) * v(j), energies not scaled. q, k (N,D,H,W),
// v, y (N,C,H,W). The H*W x H*W weights are never stored: `lse`, a plain (N,H*W), keeps the logarithm of each
// softmax's denominator, from which the backward pass makes them again, tile by tile.
CONVOY_CPU_KERNELS(size_t position_attention_workspace_bytes(const View& q);
                   void position_attention(const View& q, const View& k, const View& v, const View& y, const View& lse,
                                           float* workspace);
                   size_t position_attention_backward_workspace_bytes(const View& q, const View& v);
                   void position_attention_backward(const View& dy, const View& q, const View& k, const View& v,
                                                    const View& y, const View& lse, const View& dq, const View& dk,
                                                    const View& dv, float* workspace);)

// Channel attention (Fu et al. 2019): y(c) = sum over c' of softmax_c'(max - x(c) . x(c')) * x(c'), products over all
// pixels. `weights` is an image (N,C,C,1): channel c, row c'.
CONVOY_CPU_KERNELS(void channel_attention(const View& x, const View& y, const View& weights);
                   size_t channel_attention_backward_workspace_bytes(const View& x);
                   void channel_attention_backward(const View& dy, const View& x, const View& weights, const View& dx,
                                                   float* workspace);)

// Encoding by codewords (Zhang et al. 2018) as the reference does it: x (N,D,H,W), codewords (K,D), scale (K);
// distances d(i,k) = |x(i) - c(k)|^2, an image (N,K,H,W); a = softmax_k(+scale(k)^2 * d), the sign of the scale lost;
// y(k) = sum over pixels of a(i,k) * (x(i) - c(k)), plain (N,K,D).
CONVOY_CPU_KERNELS(size_t encoding_workspace_bytes(const View& x, int64_t codewords);
                   void encoding(const View& x, const View& codewords, const float* scale, const View& y,
                                 const View& distances, float* workspace);
                   size_t encoding_backward_workspace_bytes(const View& x, int64_t codewords);
                   void encoding_backward(const View& dy, const View& x, const View& codewords, const float* scale,
                                          const View& distances, const View& dx, float* dcodewords, float* dscale,
                                          float* workspace);)

// On the GPU: nhwc images of fp32, fp16 or bf16, sums in fp32; the arrays that are no images and the weights of
// codewords are fp32, y and dy of the encoding any of the three. Everything as above except for these:
//   position attention   `strip` queries of every image are attended at a time, which is what memory is needed for;
//                        position_attention_strip names a good number. The backward pass does without y.
//   channel attention    forward needs a workspace, too.
//   encoding             distances are fp32 or of x's dtype.
// Every workspace is aligned to 16 bytes. Throws std::invalid_argument on another layout or dtype.
CONVOY_CUDA_KERNELS(
    /// output: y or df; ca_weight needs no more than the others.
    size_t criss_cross_cuda_workspace_bytes(const View& image, const View& output);
    void ca_weight(cudaStream_t stream, const View& t, const View& f, const View& w, float* workspace);
    void ca_map(cudaStream_t stream, const View& w, const View& g, const View& y, float* workspace);
    void ca_map_transposed(cudaStream_t stream, const View& w, const View& t, const View& df, float* workspace);

    int64_t position_attention_strip(const View& q);
    size_t position_attention_cuda_workspace_bytes(const View& q, const View& y, int64_t strip);
    void position_attention(cudaStream_t stream, const View& q, const View& k, const View& v, const View& y,
                            const View& lse, int64_t strip, float* workspace);
    size_t position_attention_backward_cuda_workspace_bytes(const View& dq, const View& dk, const View& dv,
                                                            int64_t strip);
    void position_attention_backward(cudaStream_t stream, const View& dy, const View& q, const View& k, const View& v,
                                     const View& lse, const View& dq, const View& dk, const View& dv, int64_t strip,
                                     float* workspace);

    size_t channel_attention_cuda_workspace_bytes(const View& x, const View& y);
    void channel_attention(cudaStream_t stream, const View& x, const View& y, const View& weights, float* workspace);
    size_t channel_attention_backward_cuda_workspace_bytes(const View& x, const View& dx);
    void channel_attention_backward(cudaStream_t stream, const View& dy, const View& x, const View& weights,
                                    const View& dx, float* workspace);

    size_t encoding_cuda_workspace_bytes(const View& x, int64_t codewords);
    void encoding(cudaStream_t stream, const View& x, const View& codewords, const float* scale, const View& y,
                  const View& distances, float* workspace);
    size_t encoding_backward_cuda_workspace_bytes(const View& x, const View& distances, const View& dx,
                                                  int64_t codewords);
    void encoding_backward(cudaStream_t stream, const View& dy, const View& x, const View& codewords,
                           const float* scale, const View& distances, const View& dx, float* dcodewords, float* dscale,
                           float* workspace);)
