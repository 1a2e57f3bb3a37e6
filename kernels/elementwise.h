// Pointwise arithmetic, channel gates and their backward.
#pragma once
#include "kernels/activation.h"
#include "kernels/isa.h"
#include "kernels/view.h"

// Operands of one call have equal shapes and layouts; each may be a slice of its own. Blocked, nchw and nhwc images and
// plain arrays are all accepted where nothing else is said. y (dx) may alias any operand of the same call.
//
// accumulate           y += x
// scale                y = x * factor; scale_by_scalar reads the factor from memory
// activation           y = act(x); activation_backward: dx = dy * act'(x), from the output y
// fill                 y = value
// Blocked images with v, gate of shape (N,C,1,1), in any layout:
// add_channel          y = x + v
// mul_channel          y = x * gate; mul_channel_backward_gate: dgate = sum of dy * x over h, w
CONVOY_CPU_KERNELS(void add(const View& a, const View& b, const View& y);
                   void mul(const View& a, const View& b, const View& y); void accumulate(const View& x, const View& y);
                   void scale(const View& x, float factor, const View& y);
                   void scale_by_scalar(const View& x, const float* factor, const View& y);
                   void fill(const View& y, float value); void activation(const View& x, Activation act, const View& y);
                   void activation_backward(const View& dy, const View& y, Activation act, const View& dx);
                   void add_channel(const View& x, const View& v, const View& y);
                   void mul_channel(const View& x, const View& gate, const View& y);
                   void mul_channel_backward_gate(const View& dy, const View& x, const View& dgate);)
