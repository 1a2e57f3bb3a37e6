"""Street scenes in Cityscapes or CamVid layout: listing, decoding, augmentation, batches with PIL and numpy alone."""

import glob
import os
import threading
from queue import Queue

import numpy as np
from PIL import Image

IGNORE = -1
CITYSCAPES_CLASSES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation", "terrain",
    "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip
CAMVID_CLASSES = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
TRAINED_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
INVALID = -2
CACHE_BYTES = 2 << 30

MEAN = np.float32(0.5)
STD = np.float32(0.5)


def cityscapes_pairs(root, split):
    """ROOT/{leftImg8bit,gtFine}/SPLIT/CITY/*: (image, label) paths sorted by name."""
    suffix = "_leftImg8bit.png"
    paths = glob.glob(os.path.join(root, "leftImg8bit", split, "*", "*" + suffix))
    images = sorted(p for p in paths if not os.path.basename(p).startswith("._"))
    if not images:
        raise SystemExit(f"no images: {root}/leftImg8bit/{split}/CITY/*{suffix}")
    label_suffix = "_gtFine_labelIds.png"
    return [
        (p, p[: -len(suffix)].replace(os.sep + "leftImg8bit" + os.sep, os.sep + "gtFine" + os.sep) + label_suffix)
        for p in images
    ]


def cityscapes_table():
    """Label id (one byte; 255 stands for -1) to class 0..18, IGNORE, or INVALID for ids that do not exist."""
    table = np.full(256, INVALID, np.int8)
    table[:34] = IGNORE
    table[255] = IGNORE
    for index, label_id in enumerate(TRAINED_IDS):
        table[label_id] = index
    return table


def camvid_pairs(root, split):
    """ROOT/SPLIT/NAME.{jpg,png} and ROOT/SPLITannot/NAME.png: (image, label) paths sorted by name."""
    images = sorted(p for p in glob.glob(os.path.join(root, split, "*")) if p.endswith((".jpg", ".png")))
    if not images:
        raise SystemExit(f"no images: {root}/{split}/*.jpg or *.png")
    labels = os.path.join(root, split + "annot")
    return [(p, os.path.join(labels, os.path.splitext(os.path.basename(p))[0] + ".png")) for p in images]


def camvid_table():
    """Label index 0..10 to itself, 11 (void) to IGNORE."""
    table = np.full(256, INVALID, np.int8)
    table[:11] = np.arange(11)
    table[11] = IGNORE
    return table


LAYOUTS = {
    "cityscapes": (CITYSCAPES_CLASSES, cityscapes_pairs, cityscapes_table),
    "camvid": (CAMVID_CLASSES, camvid_pairs, camvid_table),
}


class Scenes:
    """Pairs (image, labels) of one split, uint8 (H,W,3) and int8 (H,W); the first CACHE_BYTES are decoded only once."""

    def __init__(self, layout, root, split):
        self.classes, pairs, table = LAYOUTS[layout]
        self.pairs = pairs(root, split)
        self.table = table()
        self.cache = {}
        self.cached_bytes = 0

    def __len__(self):
        return len(self.pairs)

    def load(self, index):
        if index in self.cache:
            return self.cache[index]
        image, classes = self._decode(*self.pairs[index])
        if self.cached_bytes + image.nbytes + classes.nbytes <= CACHE_BYTES:
            self.cache[index] = image, classes
            self.cached_bytes += image.nbytes + classes.nbytes
        return image, classes

    def _decode(self, image_path, label_path):
        with Image.open(image_path) as file:
            image = np.asarray(file.convert("RGB"))
        with Image.open(label_path) as file:
            ids = np.asarray(file)
        if ids.ndim != 2 or ids.dtype != np.uint8:
            raise SystemExit(f"{label_path}: expected one 8-bit channel of label ids, found {ids.dtype} {ids.shape}")
        if ids.shape != image.shape[:2]:
            raise SystemExit(f"{label_path}: {ids.shape} does not match its image's {image.shape[:2]}")
        classes = self.table[ids]
        if (classes == INVALID).any():
            y, x = np.argwhere(classes == INVALID)[0]
            raise SystemExit(f"{label_path}: pixel ({y}, {x}) has the unknown id {ids[y, x]}")
        return image, classes


def normalise(image):
    """uint8 (H,W,3) to float32 (3,H,W), (x/255 - mean) / std."""
    scaled = (image.astype(np.float32) / np.float32(255) - MEAN) / STD
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))


def augment(image, classes, base, crop, rng):
    """Mirror with p = .5, short side U{base/2 .. 2 base}, padding right and below, uniform random crop."""
    picture, labels = Image.fromarray(image), Image.fromarray(classes.view(np.uint8))
    if rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        labels = labels.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    width, height = picture.size
    short = int(rng.integers(base // 2, 2 * base, endpoint=True))
    if width < height:
        size = (short, int(height * short / width))
    else:
        size = (int(width * short / height), short)
    picture = picture.resize(size, Image.Resampling.BILINEAR)
    labels = labels.resize(size, Image.Resampling.NEAREST)
    image, classes = pad(np.asarray(picture), np.asarray(labels).view(np.int8), crop)
    y = int(rng.integers(0, image.shape[0] - crop[0], endpoint=True))
    x = int(rng.integers(0, image.shape[1] - crop[1], endpoint=True))
    return image[y : y + crop[0], x : x + crop[1]], classes[y : y + crop[0], x : x + crop[1]]


def pad(image, classes, size):
    """Grows to at least `size` (H, W) at the right and the bottom: black, ignored."""
    grow = (max(0, size[0] - image.shape[0]), max(0, size[1] - image.shape[1]))
    if grow == (0, 0):
        return image, classes
    image = np.pad(image, ((0, grow[0]), (0, grow[1]), (0, 0)))
    return image, np.pad(classes, ((0, grow[0]), (0, grow[1])), constant_values=IGNORE)


def batches(scenes, steps, batch, base, crop, seed):
    """Yields `steps` arrays (N,3,H,W) float32 and (N,H,W) int64: epochs shuffled by (seed, epoch), last part dropped.

    One thread prepares the next batches while the network computes.
    """
    if batch > len(scenes):
        raise SystemExit(f"--batch {batch} is larger than the {len(scenes)} training images")
    queue = Queue(maxsize=3)

    def produce():
        try:
            per_epoch = len(scenes) // batch
            for step in range(steps):
                epoch, place = divmod(step, per_epoch)
                order = np.random.default_rng((seed, epoch)).permutation(len(scenes))
                pairs = []
                for slot in range(batch):
                    rng = np.random.default_rng((seed, step, slot))
                    pairs.append(augment(*scenes.load(int(order[place * batch + slot])), base, crop, rng))
                images = np.stack([normalise(image) for image, _ in pairs])
                queue.put((images, np.stack([classes for _, classes in pairs]).astype(np.int64)))
        except BaseException as error:  # handed to the consumer, which would wait for ever otherwise
            queue.put(error)

    threading.Thread(target=produce, daemon=True).start()
    for _ in range(steps):
        item = queue.get()
        if isinstance(item, BaseException):
            raise item
        yield item
