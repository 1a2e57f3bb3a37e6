#!/usr/bin/env python3
"""Makes a file of reference figures like an existing one at another size, batch and seed, by the float64 peer networks.

    make_golden.py tests/golden/segmentron/cityscapes_bisenet.a.json --size 2x65x97 --seed 12345 --output odd.json
    convoy verify odd.json

The float32 errors (rel32_max) come from one float32 run of the same network.
"""

import argparse
import json

import torch

from check_golden import backward, fill_network, make_input, make_target, samples, set_training
from networks import BiSeNet, FastScnn

KINDS = {"FastSCNN": FastScnn, "BiSeNet": BiSeNet}


def relative(x32, x64):
    return ((x32.double() - x64).norm() / x64.norm().clamp_min(1e-300)).item()


def tensor_row(name, x64, x32, count):
    error = relative(x32, x64)
    return {"name": name, "shape": list(x64.shape), "mean": x64.mean().item(), "std": x64.std(unbiased=False).item(),
            "l2": x64.norm().item(), "rel32": error, "abs32": (x32.double() - x64).norm().item(), "rel32_max": error,
            "samples": samples(x64, count).tolist()}


def build(golden, dtype):
    facts = golden["facts"]
    net = KINDS[facts["model_name"]](facts["nclass"], facts["aux"]).double()
    fill_network(net, golden)
    return net.to(dtype)


def run(golden, mode, dtype):
    net = build(golden, dtype)
    x = make_input(golden).to(dtype).requires_grad_()
    if mode == "eval":
        with torch.no_grad():
            return net, net.eval()(x), None, None
    set_training(net, batch_statistics=mode == "train")
    outputs, loss = backward(net, golden, x, make_target(golden))
    return net, [o.detach() for o in outputs], loss, x.grad


def training_figures(golden, mode):
    net64, out64, loss64, dx64 = run(golden, mode, torch.float64)
    net32, out32, loss32, dx32 = run(golden, mode, torch.float32)
    loss_error = abs(loss32 - loss64) / abs(loss64)
    p32 = dict(net32.named_parameters())
    grads, squares = [], 0.0
    for name, p in net64.named_parameters():
        if p.grad is None:
            grads.append([name, None])
            continue
        g32 = p32[name].grad
        error = relative(g32, p.grad)
        squares += p.grad.norm().item() ** 2
        grads.append([name, p.grad.norm().item(), error, (g32.double() - p.grad).norm().item(), error, samples(p.grad, 4).tolist()])
    figures = {"outputs": [tensor_row(f"out{i}", a, b, 64) for i, (a, b) in enumerate(zip(out64, out32))], "loss": loss64,
               "loss_rel32": loss_error, "loss_rel32_max": loss_error, "input_grad": tensor_row("input", dx64, dx32, 16),
               "grads": grads, "grad_summary": {"global_l2": squares**0.5}}
    if mode == "train":
        m32 = dict(net32.named_modules())
        figures["bn"] = [[n, m.running_mean.norm().item(), relative(m32[n].running_mean, m.running_mean), m.running_var.norm().item(),
                          relative(m32[n].running_var, m.running_var), m.num_batches_tracked.item()]
                         for n, m in net64.named_modules() if isinstance(m, torch.nn.BatchNorm2d)]
        for net in (net64, net32):
            torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4).step()
        figures["sgd"] = [[n, p.norm().item(), relative(p32[n].detach(), p.detach())] for n, p in net64.named_parameters()]
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("like", metavar="FILE.json", help="a file whose network and fill rules to take")
    parser.add_argument("--size", required=True, help="batch and image size, NxHxW")
    parser.add_argument("--seed", type=int, default=12345)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    n, h, w = (int(v) for v in args.size.split("x"))
    with open(args.like) as f:
        golden = json.load(f)
    golden["case_seed"] = args.seed
    golden["input"]["shape"] = [n, 3, h, w]
    golden["target"]["shape"] = [n, h, w]
    out64, out32 = run(golden, "eval", torch.float64)[1], run(golden, "eval", torch.float32)[1]
    golden["eval"] = {"outputs": [tensor_row(f"out{i}", a, b, 64) for i, (a, b) in enumerate(zip(out64, out32))]}
    for mode in ("frozen", "train"):
        golden[mode] = training_figures(golden, mode)
    with open(args.output, "w") as f:
        json.dump(golden, f)


if __name__ == "__main__":
    main()
