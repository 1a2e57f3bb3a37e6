/* An element-wise sum to be timed beside Convoy's:
 *   cc -O3 -march=native -I. -shared -fPIC -o add.so bench/user_kernel/add.c
 *   convoy bench op --user-kernel ./add.so:my_add --for add */
#include "kernels/user_kernel.h"

int my_add(void* stream, const convoy_view* inputs, int32_t input_count, const convoy_view* outputs,
           int32_t output_count, void* workspace, int64_t workspace_bytes, const char* attributes) {
  (void)stream, (void)workspace, (void)workspace_bytes, (void)attributes;
  if (input_count != 2 || output_count != 1 || outputs[0].dtype != CONVOY_F32) return 1;
  const convoy_view y = outputs[0];
  const int64_t lanes = (y.c + y.block - 1) / y.block * y.block;
  if (y.pitch != lanes || inputs[0].pitch != lanes || inputs[1].pitch != lanes) return 2; /* slices of wider tensors */
  const float *a = inputs[0].data, *b = inputs[1].data;
  float* sum = y.data;
  for (int64_t i = 0; i < y.n * y.pitch * y.h * y.w; ++i) sum[i] = a[i] + b[i];
  return 0;
}
