#include "apps/torch_python.h"

namespace convoy {

const char* const kTorchImports = R"py(
import argparse
import json
import math
import statistics
import sys
import time

import torch
from torch.nn import functional as F


def constant(value, *shape):
    return torch.full(shape, value)


def uniform(bound, *shape):
    return torch.empty(shape).uniform_(-bound, bound)


def normal(std, mean, *shape):
    return torch.empty(shape).normal_(mean, std)


class Part(torch.nn.Module):
    """Holds what is named below it. Parts with a number for a name are self[0], self[1], ..."""

    def __getitem__(self, name):
        return self._modules[str(name)]

    def put(self, path, value):
        """Registers a Parameter or else a buffer under a name with dots."""
        first, _, rest = path.partition(".")
        if rest:
            if first not in self._modules:
                self.add_module(first, Part())
            self._modules[first].put(rest, value)
        elif isinstance(value, torch.nn.Parameter):
            self.register_parameter(first, value)
        else:
            self.register_buffer(first, value)

    def parameter(self, path, value):
        self.put(path, torch.nn.Parameter(value))
)py";

const char* const kTorchProgram = R"py(

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
         "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
         "BOOL": torch.bool}
SIGN_CHANGES = 2e-2  # see check()


def load_safetensors(path):
    """Tensors by name: u64 length of a JSON header {name: {dtype, shape, data_offsets}}, the header, raw values."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size].decode()).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if begin == end:
            tensors[name] = torch.empty(entry["shape"], dtype=TYPES[entry["dtype"]])
            continue
        raw = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=8 + size + begin)
        tensors[name] = raw.clone().view(TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def load_weights(net, tensors, source):
    """Sets all parameters and buffers; further tensors are left alone."""
    missing = [name for name in net.state_dict() if name not in tensors]
    if missing:
        raise SystemExit(f"error: {source} lacks {missing[0]} and {len(missing) - 1} more of {len(net.state_dict())}")
    for name, tensor in net.state_dict().items():
        if tensors[name].shape != tensor.shape:
            raise SystemExit(f"error: {source}: {name} has the shape {list(tensors[name].shape)}, "
                             f"in this network of {CLASSES} classes {list(tensor.shape)}")
    net.load_state_dict({name: tensors[name] for name in net.state_dict()})


def run(values, mode, dtype):
    """A pass with the weights, image and target of `values`: tensors by the name that they have there."""
    net = Net()
    load_weights(net, values, "the file")
    net = net.to(dtype).train(mode == "train")
    image, target = values["check.image"].to(dtype), values["check.target"].long()
    result = {}
    if mode == "eval":
        with torch.no_grad():
            outputs = net(image)
    else:
        outputs = net.forward_training(image)
        loss = net.loss(outputs, target)
        loss.backward()
        result["loss"] = loss.detach()
        result.update((f"grad.{name}", p.grad) for name, p in net.named_parameters() if p.grad is not None)
    result.update((f"out{i}", output.detach()) for i, output in enumerate(outputs))
    if mode == "train":
        result.update((f"state.{name}", b) for name, b in net.named_buffers() if f"check.train.state.{name}" in values)
    return {f"check.{mode}.{name}": tensor.double() for name, tensor in result.items()}


def distance(found, wanted):
    """Relative difference of lists of tensors, each list taken as one vector."""
    difference = sum(float((a - b).square().sum()) for a, b in zip(found, wanted))
    return math.sqrt(difference / max(sum(float(b.square().sum()) for b in wanted), 1e-300))


def check(path, limit):
    """Compares the outputs, loss, gradients and moved statistics that Convoy wrote with those in double precision here.

    The limit holds for each of them, relative to its norm. Where PyTorch's own single precision is farther than a third
    of the limit from its double precision, three times that distance is allowed. With batch statistics, rounding turns
    the sign of a few activations, in any program of single precision, and each moves all gradients before it: those of
    the train pass may differ by SIGN_CHANGES. Those of the frozen pass are the sharp test.
    """
    values = load_safetensors(path)
    names = [name for name in values if not name.startswith("check.")]
    report = {"network": NAME, "limit": limit, "same_names": sorted(names) == sorted(Net().state_dict()), "figures": []}
    for mode in ("eval", "frozen", "train"):
        exact, single = run(values, mode, torch.float64), run(values, mode, torch.float32)
        wanted = {name: t.double() for name, t in values.items() if name.startswith(f"check.{mode}.")}
        if set(wanted) != set(exact):
            raise SystemExit(f"error: {mode}: only one side has {sorted(set(wanted) ^ set(exact))[0]}")
        groups = {}
        for name in exact:
            part = name.split(".")[2]
            groups.setdefault({"grad": "gradients", "state": "statistics"}.get(part, part), []).append(name)
        for group, members in groups.items():
            reference = [exact[name] for name in members]
            ours = distance([wanted[name] for name in members], reference)
            own = distance([single[name] for name in members], reference)
            allowed = max(3 * own, SIGN_CHANGES if (mode, group) == ("train", "gradients") else limit)
            report["figures"].append({"pass": mode, "group": group, "difference": ours, "single_precision": own,
                                      "ok": ours <= allowed})
    report["ok"] = report["same_names"] and all(figure["ok"] for figure in report["figures"])
    return report


def bench(net, args):
    """Median seconds of a prediction and of a training step (forward, loss, backward, SGD)."""
    image = torch.randn(args.batch, 3, *args.size)
    target = torch.randint(0, CLASSES, (args.batch, *args.size))
    if args.channels_last:
        net, image = net.to(memory_format=torch.channels_last), image.contiguous(memory_format=torch.channels_last)
    net.dropout = True
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4, fused=True)
    forward = torch.compile(net) if args.compile else net

    def predict():
        net.eval()
        with torch.inference_mode():
            forward(image)

    def train():
        net.train()
        optimizer.zero_grad(set_to_none=True)
        net.loss(forward(image), target).backward()
        optimizer.step()

    def median_seconds(step):
        seconds = []
        for _ in range(3 + args.steps):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[3:])

    return {"network": NAME, "batch": args.batch, "size": args.size, "threads": torch.get_num_threads(),
            "torch": torch.__version__, "predict_seconds": median_seconds(predict), "train_seconds": median_seconds(train)}


def image_size(text):
    try:
        height, width = (int(extent) for extent in text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no size; write HEIGHTxWIDTH") from None
    return [height, width]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", nargs="?", metavar="WEIGHTS.safetensors")
    parser.add_argument("--check", metavar="VALUES.safetensors", help="compare with what --export-values wrote")
    parser.add_argument("--limit", type=float, default=1e-4, help="largest relative difference (default %(default)s)")
    parser.add_argument("--bench", action="store_true", help="measure a prediction and a training step")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=image_size, default="x".join(map(str, SIZE)), help="HxW (default %(default)s)")
    parser.add_argument("--steps", type=int, default=7, help="measured steps (default %(default)s)")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--channels-last", action="store_true", help="with --bench: the other memory format")
    parser.add_argument("--compile", action="store_true", help="with --bench: by torch.compile")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    if args.check:
        report = check(args.check, args.limit)
        if args.json:
            print(json.dumps(report))
        else:
            for figure in report["figures"]:
                print("{ok!s:<6} {pass:<7} {group:<11} difference {difference:.2e}, "
                      "single precision here {single_precision:.2e}".format(**figure))
            if not report["same_names"]:
                print("False  the names of the file's weights are not those of the network")
        sys.exit(0 if report["ok"] else 1)
    net = Net()
    if args.weights:
        load_weights(net, load_safetensors(args.weights), args.weights)
    if args.bench:
        print(json.dumps(bench(net, args)))
    else:
        with torch.no_grad():
            for output in net.eval()(torch.zeros(args.batch, 3, *args.size)):
                print(list(output.shape))


if __name__ == "__main__":
    try:
        main()
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())
        advice = "; a training step needs a larger --batch" if "more than 1 value per channel" in text else ""
        raise SystemExit(f"error: {text}{advice}")
)py";

}  // namespace convoy
