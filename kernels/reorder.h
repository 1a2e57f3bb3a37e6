// Copies of image tensors between layouts.
#pragma once
#include "kernels/isa.h"
#include "kernels/view.h"

// reorder   copies `from` to `to`, which has the same shape, any of the three layouts and its own pitch; elements of
//           4 bytes. Pad lanes of a blocked `to` become zero. Equal layouts: the copy of a slice (a part of a concat).
CONVOY_CPU_KERNELS(void reorder(const View& from, const View& to);)
