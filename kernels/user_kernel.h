/* What `convoy bench op --user-kernel LIB.so:FUNCTION --for OP` calls: a launcher of the operator's arguments, in C.
 *
 * The function gets the same tensors as Convoy's own kernel, in the same layouts, with the outputs full of NaN. It
 * returns 0, or another number where it does not take such arguments (the row then says so). On `cpu` and `emulated`
 * all memory is the host's and `stream` means nothing; the work is to be done when the function returns. */
#pragma once
#include <stdint.h>

enum convoy_dtype { CONVOY_F32, CONVOY_F16, CONVOY_BF16, CONVOY_F64, CONVOY_I64, CONVOY_I32, CONVOY_U8 };

/* Where element (n,c,h,w) lies, P = pitch, B = block, in elements from `data`:
 *   CONVOY_NCHW     ((n*P + c)*H + h)*W + w        arrays of other ranks, too: extents padded with 1 on the right
 *   CONVOY_NHWC     ((n*H + h)*W + w)*P + c
 *   CONVOY_BLOCKED  (((n*P/B + c/B)*H + h)*W + w)*B + c%B
 * Channels from c up to a multiple of B are pads: zero in inputs, and to be written as zeros. */
enum convoy_layout { CONVOY_NCHW, CONVOY_NHWC, CONVOY_BLOCKED };

typedef struct {
  void* data; /* null for an output that nobody wants */
  int32_t dtype, layout;
  int64_t n, c, h, w, pitch, block;
} convoy_view;

/* `attributes` are the operator's, as its row shows them: "stride_h=2 pad_h=1". */
typedef int convoy_kernel(void* stream, const convoy_view* inputs, int32_t input_count, const convoy_view* outputs,
                          int32_t output_count, void* workspace, int64_t workspace_bytes, const char* attributes);
