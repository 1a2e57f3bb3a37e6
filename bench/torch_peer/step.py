#!/usr/bin/env python3
"""Times whole training steps in PyTorch: forward, loss, backward, SGD (momentum .9, decay 1e-4) of an exported network.

Alone:   convoy plan --export-torch BiSeNet
         step.py BiSeNet.py --size 256x512 --batch 2 --threads 2 --format channels_last --pairs 7
         one JSON object: the seconds of every step, their median, peak memory.
Server:  the same with --server: one JSON object per line.  The first announces {"torch", "threads", ...}; then for
         each line on stdin:
           warmup  -> {"warmup": steps, "seconds": total}
           step    -> {"seconds": one step, "cpu_seconds": the same over all threads, "loss": value}
           memory  -> {"memory_bytes": VmHWM minus its value after start-up, ...}
           quit    -> leaves, as does the end of stdin
         Anything else -> {"error": text}.  A caller interleaves its own steps with these.

Start-up is over once PyTorch is imported, before the network is built.  Set OMP_WAIT_POLICY=passive before starting
two programs that take turns on the same cores, so that the waiting one does not spin.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", metavar="FILE.py", help="what convoy plan --export-torch wrote")
    parser.add_argument("--size", default="256x512", help="HxW of the input (default %(default)s)")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--format", choices=("nchw", "channels_last"), default="nchw", help="memory format")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--pairs", type=int, default=7, help="timed steps without --server (default %(default)s)")
    parser.add_argument("--warmup", type=int, default=3, help="steps of one warm-up (default %(default)s)")
    parser.add_argument("--sgd", choices=("plain", "foreach", "fused"), default="fused", help="form of the optimizer")
    parser.add_argument("--server", action="store_true")
    args = parser.parse_args()
    try:
        args.height, args.width = (int(v) for v in args.size.split("x"))
    except ValueError:
        parser.error(f"--size {args.size}: expected HxW, for example 256x512")
    if args.batch < 2:
        parser.error("--batch must be at least 2: batch norm behind a global pooling needs two values per channel")
    if min(args.threads, args.pairs, args.warmup) < 1:
        parser.error("--threads, --pairs and --warmup must be at least 1")
    return args


def status_bytes(key):
    """A value of /proc/self/status, such as VmHWM (peak resident memory), in bytes."""
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no line {key}")


ARGS = parse_args()  # before the slow import, so that --help and mistakes answer at once

import torch  # noqa: E402

STARTUP_HWM = status_bytes("VmHWM")
STARTUP_RSS = status_bytes("VmRSS")


def load_module(path):
    spec = importlib.util.spec_from_file_location("exported", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TrainingStep:
    """A network, one batch of random images and labels (10 % ignored), and the optimizer."""

    def __init__(self, args):
        torch.set_num_threads(args.threads)
        torch.manual_seed(1)
        shape = (args.batch, args.height, args.width)
        module = load_module(args.module)
        self.name = module.NAME
        self.net = module.Net()
        self.net.dropout = True
        self.images = torch.randn(shape[0], 3, *shape[1:])
        self.labels = torch.randint(0, module.CLASSES, shape)
        self.labels[torch.rand(shape) < 0.1] = -1
        if args.format == "channels_last":
            self.net = self.net.to(memory_format=torch.channels_last)
            self.images = self.images.contiguous(memory_format=torch.channels_last)
        self.net.train()
        self.forward = torch.compile(self.net) if args.compile else self.net
        # Parameters that never get a gradient (the backbone's unused classifier) are skipped by the optimizer.
        form = {"foreach": args.sgd == "foreach", "fused": args.sgd == "fused"}
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, **form)

    def run(self):
        """One step; returns its wall seconds, CPU seconds over all threads, and the loss."""
        start, cpu_start = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.net.loss(self.forward(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        value = loss.item()
        return {
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu_start,
            "loss": value,
        }

    def warm_up(self, steps):
        return sum(self.run()["seconds"] for _ in range(steps))


def memory():
    hwm = status_bytes("VmHWM")
    return {
        "memory_bytes": hwm - STARTUP_HWM,
        "vm_hwm_bytes": hwm,
        "startup_hwm_bytes": STARTUP_HWM,
        "startup_rss_bytes": STARTUP_RSS,
    }


def describe(step, args):
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "net": step.name,
        "compiled": args.compile,
        "size": [args.height, args.width],
        "batch": args.batch,
        "format": args.format,
        "sgd": args.sgd,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", ""),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def answer(command, step, args):
    if command == "warmup":
        return {"warmup": args.warmup, "seconds": step.warm_up(args.warmup)}
    if command == "step":
        return step.run()
    if command == "memory":
        return memory()
    return {"error": f"unknown command '{command}'; known: warmup, step, memory, quit"}


def serve(step, args):
    print(json.dumps(describe(step, args)), flush=True)
    for line in sys.stdin:
        command = line.strip()
        if command == "quit":
            break
        if command:
            print(json.dumps(answer(command, step, args)), flush=True)


def main():
    step = TrainingStep(ARGS)
    if ARGS.server:
        serve(step, ARGS)
        return
    step.warm_up(ARGS.warmup)
    runs = [step.run() for _ in range(ARGS.pairs)]
    columns = {key: [run[key] for run in runs] for key in ("seconds", "cpu_seconds")}
    medians = {f"median_{key}": statistics.median(values) for key, values in columns.items()}
    print(json.dumps({**describe(step, ARGS), **columns, **medians, "loss": runs[-1]["loss"], **memory()}))


if __name__ == "__main__":
    main()
