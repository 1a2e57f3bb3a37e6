#!/usr/bin/env python3
"""What data parallelism costs a training step in PyTorch: the peer of `convoy bench ranks`.

    ddp_step.py --net bisenet --size 256x512 --batch 4 --ranks 2 --rounds 7 --steps 3 > ddp.json

Starts the ranks as processes of this host (DistributedDataParallel over gloo).  Three kinds of step take turns, round
by round: `together` (all ranks, gradients averaged), `alone` (rank 0 by itself on as many images as it has together,
without DistributedDataParallel; the others wait) and `side_by_side` (all ranks do that at the same time).  One JSON
object: rank 0's seconds of every step, medians, and the ratios together / alone and together / side by side (a round's
means, of the slowest rank; then the median over rounds).

PyTorch's SyncBatchNorm runs on GPUs only, so batch statistics are those of each rank: less is exchanged than in
Convoy.  For the same reason each rank needs two images.
"""

import argparse
import datetime
import json
import os
import socket
import statistics
import sys
import time


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=("bisenet", "fast_scnn"), required=True)
    parser.add_argument("--size", default="256x512", help="HxW of the input (default %(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="images of all ranks together (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each rank (default %(default)s)")
    parser.add_argument("--format", choices=("nchw", "channels_last"), default="channels_last", help="memory format")
    parser.add_argument("--aux", action="store_true", help="BiSeNet with its two extra heads (Fast-SCNN has them)")
    parser.add_argument("--bucket-mb", type=float, default=25, help="bucket_cap_mb (default %(default)s)")
    parser.add_argument("--warmup", type=int, default=2, help="steps of each kind before the clock starts")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="of each kind in a round (default %(default)s)")
    args = parser.parse_args()
    try:
        args.height, args.width = (int(v) for v in args.size.split("x"))
    except ValueError:
        parser.error(f"--size {args.size}: expected HxW, for example 256x512")
    if args.ranks < 2 or args.batch % args.ranks or args.batch // args.ranks < 2:
        parser.error("--batch must give each of at least two ranks the same number of images, two or more")
    if min(args.threads, args.rounds, args.steps, args.warmup) < 1:
        parser.error("--threads, --rounds, --steps and --warmup must be at least 1")
    return args


ARGS = parse_args()  # before the slow import, so that --help and mistakes answer at once

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from networks import BiSeNet, FastScnn, mixed_cross_entropy  # noqa: E402


class Step:
    """A network, one batch of random images and labels, and the optimizer."""

    def __init__(self, args, distributed):
        torch.manual_seed(1)
        shape = (args.batch // args.ranks, args.height, args.width)
        net = FastScnn() if args.net == "fast_scnn" else BiSeNet(aux=args.aux)
        self.images = torch.randn(shape[0], 3, *shape[1:])
        self.labels = torch.randint(0, 19, shape)
        if args.format == "channels_last":
            net = net.to(memory_format=torch.channels_last)
            self.images = self.images.contiguous(memory_format=torch.channels_last)
        net.train()
        if distributed:
            mixed_cross_entropy(net(self.images), self.labels).backward()
            for parameter in net.parameters():  # the backbone's classifier takes no part, which DDP has to know
                parameter.requires_grad_(parameter.grad is not None)
                parameter.grad = None
            net = DistributedDataParallel(
                net, bucket_cap_mb=args.bucket_mb, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        self.net = net
        trained = [p for p in net.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)

    def run(self):
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = mixed_cross_entropy(self.net(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        loss.item()
        return time.perf_counter() - start


def run_rank(args):
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
    rank = dist.get_rank()
    distributed, own = Step(args, True), Step(args, False)
    kinds = {"together": (distributed, True), "alone": (own, rank == 0), "side_by_side": (own, True)}
    seconds = {name: [] for name in kinds}
    rounds = {name: [] for name in kinds}

    def round_of(steps, record):
        for name, (step, here) in kinds.items():
            dist.barrier()
            times = [step.run() for _ in range(steps)] if here else [0.0]
            slowest = torch.tensor([statistics.mean(times)], dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if record:
                seconds[name] += times
                rounds[name].append(slowest.item())

    round_of(args.warmup, record=False)
    for _ in range(args.rounds):
        round_of(args.steps, record=True)
    if rank == 0:
        result = {
            "torch": torch.__version__,
            "net": args.net,
            "aux": args.net == "fast_scnn" or args.aux,
            "input": f"{args.batch}x3x{args.height}x{args.width}",
            "ranks": args.ranks,
            "threads_per_rank": args.threads,
            "format": args.format,
            "bucket_mb": args.bucket_mb,
            "batch_statistics": "of each rank",
        }
        for name, times in seconds.items():
            result[name] = {"seconds": times, "median_seconds": statistics.median(times)}
        for name in ("alone", "side_by_side"):
            ratios = [a / b for a, b in zip(rounds["together"], rounds[name])]
            result[f"ratio_to_{name}"] = statistics.median(ratios)
            result[f"ratios_to_{name}"] = ratios
        print(json.dumps(result, indent=1))
    dist.barrier()
    dist.destroy_process_group()


def main():
    if "RANK" in os.environ:
        run_rank(ARGS)
        return 0
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    children = []
    for rank in range(ARGS.ranks):
        environment = dict(
            os.environ,
            RANK=str(rank),
            WORLD_SIZE=str(ARGS.ranks),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            OMP_NUM_THREADS=str(ARGS.threads),
        )
        pid = os.spawnve(os.P_NOWAIT, sys.executable, [sys.executable, *sys.argv], environment)
        children.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children)


if __name__ == "__main__":
    sys.exit(main())
