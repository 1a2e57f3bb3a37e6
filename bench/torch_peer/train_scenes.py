#!/usr/bin/env python3
"""Trains Fast-SCNN (or a colour-only baseline) in PyTorch on street scenes and evaluates it on val.

    train_scenes.py DIR --steps 400 --batch 8 --crop 256x512 --base 256 --lr 0.045 --seed 1 > result.json
    train_scenes.py DIR --layout camvid --steps 900 --crop 352x480 --base 360 --lr 0.03 --bn-momentum 0.1 > result.json

Nets: fast_scnn; color1x1 (one 1x1 convolution on the colour), color_mlp (two of them with a ReLU between): what the
data can be solved to by colour alone.  All use the same data, augmentation (mirror, short side U{base/2..2 base},
random crop, mean and std 0.5), SGD with momentum 0.9 and weight decay on every parameter, polynomial learning rate
(power 0.9) after a linear warm-up.  Evaluation is at native size: images are padded to a multiple the network needs,
the padding is not counted.

Prints one JSON object: settings, loss of every step, IoU per class, mIoU over the classes present in val and over
all (absent ones count 0), pixel accuracy.  Progress goes to stderr.
"""

import argparse
import json
import sys
import time


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", metavar="DIR", help="folder with leftImg8bit/ and gtFine/, or train/, trainannot/, ...")
    parser.add_argument("--layout", choices=("cityscapes", "camvid"), default="cityscapes")
    parser.add_argument("--net", choices=("fast_scnn", "color1x1", "color_mlp"), default="fast_scnn")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--crop", default="256x512", help="HxW of the training crop (default %(default)s)")
    parser.add_argument("--base", type=int, default=256, help="BASE_SIZE of the random scale (default %(default)s)")
    parser.add_argument("--lr", type=float, default=0.045)
    parser.add_argument("--weight-decay", type=float, default=4e-5)
    parser.add_argument("--warmup-steps", type=int, default=50, help="steps of linear warm-up (default %(default)s)")
    parser.add_argument("--warmup-factor", type=float, default=1 / 3)
    parser.add_argument("--bn-momentum", type=float, default=0.01)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", choices=("nchw", "channels_last"), default="channels_last")
    parser.add_argument("--hidden", type=int, default=64, help="hidden channels of color_mlp (default %(default)s)")
    parser.add_argument("--log-every", type=int, default=20)
    args = parser.parse_args()
    try:
        args.crop_size = tuple(int(v) for v in args.crop.split("x"))
        height, width = args.crop_size
    except ValueError:
        parser.error(f"--crop {args.crop}: expected HxW, for example 256x512")
    if args.net == "fast_scnn" and (height % 32 or width % 32 or args.batch < 2):
        parser.error("fast_scnn needs a crop of multiples of 32 and a batch of at least 2")
    if min(height, width, args.steps, args.batch, args.base, args.threads, args.log_every) < 1:
        parser.error("sizes, steps, batch, base, threads and log-every must be at least 1")
    if not 0 <= args.warmup_steps < args.steps:
        parser.error("--warmup-steps must lie in 0 .. steps-1")
    return args


ARGS = parse_args()  # before the slow import, so that --help and mistakes answer at once

import numpy as np  # noqa: E402
import torch  # noqa: E402

from networks import ColorClassifier, FastScnn, mixed_cross_entropy  # noqa: E402
from scenes import Scenes, batches, normalise, pad  # noqa: E402


def learning_rate(step, args):
    """Linear warm-up from factor * lr, then lr * (1 - (t - w) / (T - w))^0.9."""
    if step < args.warmup_steps:
        share = step / args.warmup_steps
        return args.lr * (args.warmup_factor * (1 - share) + share)
    return args.lr * (1 - (step - args.warmup_steps) / (args.steps - args.warmup_steps)) ** 0.9


def build(args, classes):
    if args.net == "fast_scnn":
        return FastScnn(classes, aux=True, bn_momentum=args.bn_momentum)
    return ColorClassifier(classes, args.hidden if args.net == "color_mlp" else 0)


def memory_format(args):
    return torch.channels_last if args.format == "channels_last" else torch.contiguous_format


def train(net, scenes, args):
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=args.weight_decay)
    losses, start = [], time.perf_counter()
    net.train()
    source = batches(scenes, args.steps, args.batch, args.base, args.crop_size, args.seed)
    for step, (images, labels) in enumerate(source):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        optimizer.zero_grad(set_to_none=True)
        logits = net(torch.from_numpy(images).contiguous(memory_format=memory_format(args)))
        loss = mixed_cross_entropy(logits, torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 5))
        if not np.isfinite(losses[-1]):
            raise SystemExit(f"step {step}: the loss is {losses[-1]}; try a smaller --lr")
        if (step + 1) % args.log_every == 0:
            rate = (step + 1) / (time.perf_counter() - start)
            recent = sum(losses[-args.log_every :]) / args.log_every
            print(f"step {step + 1}/{args.steps} loss {recent:.4f} {rate:.2f} steps/s", file=sys.stderr, flush=True)
    return losses, time.perf_counter() - start


def evaluate(net, scenes, args):
    """Confusion matrix (classes, classes): rows are labels, columns predictions, labelled pixels only."""
    net.eval()
    count = len(scenes.classes)
    confusion = np.zeros((count, count), np.int64)
    for index in range(len(scenes)):
        image, labels = scenes.load(index)
        size = tuple(-(-side // net.multiple) * net.multiple for side in labels.shape)
        padded, _ = pad(image, labels, size)
        x = torch.from_numpy(normalise(padded))[None].contiguous(memory_format=memory_format(args))
        with torch.no_grad():
            prediction = net(x)[0][0].argmax(0).numpy()[: labels.shape[0], : labels.shape[1]]
        known = labels >= 0
        pairs = labels[known].astype(np.int64) * count + prediction[known]
        confusion += np.bincount(pairs, minlength=count * count).reshape(count, count)
    return confusion


def figures(confusion, classes):
    hits, labelled, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    iou = hits / np.maximum(labelled + predicted - hits, 1)
    present = labelled > 0
    return {
        "iou": {name: round(float(v), 6) if p else None for name, v, p in zip(classes, iou, present)},
        "classes_present": int(present.sum()),
        "miou_present": round(float(iou[present].mean()), 6),
        "miou_all": round(float(iou[present].sum() / len(classes)), 6),
        "pixel_accuracy": round(float(hits.sum() / max(labelled.sum(), 1)), 6),
    }


def main():
    torch.set_num_threads(ARGS.threads)
    torch.manual_seed(ARGS.seed)
    train_set, val_set = Scenes(ARGS.layout, ARGS.root, "train"), Scenes(ARGS.layout, ARGS.root, "val")
    net = build(ARGS, len(train_set.classes)).to(memory_format=memory_format(ARGS))
    losses, train_seconds = train(net, train_set, ARGS)
    start = time.perf_counter()
    confusion = evaluate(net, val_set, ARGS)
    settings = {k: v for k, v in vars(ARGS).items() if k not in ("root", "crop_size", "log_every")}
    result = {"torch": torch.__version__, **settings, "train_seconds": round(train_seconds, 2),
              "val_images": len(val_set), "val_seconds": round(time.perf_counter() - start, 2)}  # fmt: skip
    print(json.dumps({**result, **figures(confusion, val_set.classes), "loss": losses}))


if __name__ == "__main__":
    main()
