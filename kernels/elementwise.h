// Pointwise arithmetic, channel gates and their backward.
#pragma once
#include "kernels/activation.h"
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

// Operands of one call have equal shapes and layouts; each may be a slice of its own. Blocked, nchw and nhwc images and
// plain arrays are all accepted where nothing else is said. y (dx) may alias any operand of the same call.
//
// accumulate           y += x
// scale                y = x * factor; scale_by_scalar reads the factor from memory
// activation           y = act(x); activation_backward: dx = dy * act'(x), from the output y
// leaky_relu           y = x where x > 0, else slope * x; its backward reads x
// hardswish            y = x * min(max(x + 3, 0), 6) / 6 (Howard et al. 2019); its backward reads x
// fill                 y = value
// Blocked images with v, gate of shape (N,C,1,1), in any layout:
// add_bias             y = x + bias, C values
// add_channel          y = x + v
// mul_channel          y = x * gate; mul_channel_backward_gate: dgate = sum of dy * x over h, w
// Plain dense arrays:
// dot                  *result = sum of a * b, in double
CONVOY_CPU_KERNELS(void add(const View& a, const View& b, const View& y);
                   void mul(const View& a, const View& b, const View& y); void accumulate(const View& x, const View& y);
                   void scale(const View& x, float factor, const View& y);
                   void scale_by_scalar(const View& x, const float* factor, const View& y);
                   void fill(const View& y, float value); void activation(const View& x, Activation act, const View& y);
                   void activation_backward(const View& dy, const View& y, Activation act, const View& dx);
                   void leaky_relu(const View& x, float slope, const View& y);
                   void leaky_relu_backward(const View& dy, const View& x, float slope, const View& dx);
                   void hardswish(const View& x, const View& y);
                   void hardswish_backward(const View& dy, const View& x, const View& dx);
                   void add_bias(const View& x, const float* bias, const View& y);
                   void add_channel(const View& x, const View& v, const View& y);
                   void mul_channel(const View& x, const View& gate, const View& y);
                   void mul_channel_backward_gate(const View& dy, const View& x, const View& dgate);
                   void dot(const View& a, const View& b, float* result);)

// On the GPU: nhwc images or plain arrays of fp32, fp16 or bf16 in device memory (`factor` too), work enqueued on
// `stream`; images with gates are nhwc, gates nhwc or plain (N,C). Throws std::invalid_argument on another layout or
// dtype. The sums need workspaces: gate_cuda_workspace_bytes for x, dot_cuda_workspace_bytes.
CONVOY_CUDA_KERNELS(void add(cudaStream_t stream, const View& a, const View& b, const View& y);
                    void mul(cudaStream_t stream, const View& a, const View& b, const View& y);
                    void accumulate(cudaStream_t stream, const View& x, const View& y);
                    void scale(cudaStream_t stream, const View& x, float factor, const View& y);
                    void scale_by_scalar(cudaStream_t stream, const View& x, const float* factor, const View& y);
                    void activation(cudaStream_t stream, const View& x, Activation act, const View& y);
                    void activation_backward(cudaStream_t stream, const View& dy, const View& y, Activation act,
                                             const View& dx);
                    void fill(cudaStream_t stream, const View& y, float value);
                    void leaky_relu(cudaStream_t stream, const View& x, float slope, const View& y);
                    void leaky_relu_backward(cudaStream_t stream, const View& dy, const View& x, float slope,
                                             const View& dx);
                    void hardswish(cudaStream_t stream, const View& x, const View& y);
                    void hardswish_backward(cudaStream_t stream, const View& dy, const View& x, const View& dx);
                    void add_bias(cudaStream_t stream, const View& x, const float* bias, const View& y);
                    void add_channel(cudaStream_t stream, const View& x, const View& v, const View& y);
                    void mul_channel(cudaStream_t stream, const View& x, const View& gate, const View& y);
                    size_t gate_cuda_workspace_bytes(const View& x);
                    void mul_channel_backward_gate(cudaStream_t stream, const View& dy, const View& x,
                                                   const View& dgate, float* workspace);
                    size_t dot_cuda_workspace_bytes();
                    void dot(cudaStream_t stream, const View& a, const View& b, float* result, double* workspace);)
