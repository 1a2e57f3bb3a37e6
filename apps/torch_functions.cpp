#include <algorithm>
#include <iterator>

#include "apps/torch_python.h"

namespace convoy {

namespace {

// By the functions' own names.
struct Function {
  const char *name, *text;
};
const Function kFunctions[] = {
    {"has_label", R"py(def has_label(target, classes):
    """(N, H, W, C): whether a pixel is of the class."""
    return target.unsqueeze(-1) == torch.arange(classes, device=target.device)
)py"},
    {"batch_norm", R"py(def batch_norm(x, norm, training, momentum, eps):
    """As torch.nn.BatchNorm2d does: running statistics move in training only."""
    if training:
        norm.num_batches_tracked.add_(1)
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, training, momentum, eps)
)py"},
    {"other_rows", R"py(def other_rows(height, width, device):
    """Index (1, H-1, H, W) of the rows that criss-cross attention adds to a pixel's own, from top to bottom."""
    k, y = torch.arange(height - 1, device=device)[:, None], torch.arange(height, device=device)[None]
    return (k + (k >= y))[None, :, :, None].expand(1, height - 1, height, width)
)py"},
    {"ca_weight", R"py(def ca_weight(t, f):
    """Criss-cross attention: products of t with f at the pixels of its row, then at the others of its column."""
    rows, columns = torch.einsum("nchw,ncha->nahw", t, f), torch.einsum("nchw,ncaw->nahw", t, f)
    others = other_rows(*t.shape[2:], t.device).expand(len(t), -1, -1, -1)
    return torch.cat((rows, columns.gather(1, others)), 1)
)py"},
    {"ca_map", R"py(def ca_map(weight, g):
    """Criss-cross attention: the sum of g at the attended pixels."""
    n, _, h, w = g.shape
    others = other_rows(h, w, g.device).expand(n, -1, -1, -1)
    columns = weight.new_zeros(n, h, h, w).scatter(1, others, weight[:, w:])
    return torch.einsum("nahw,ncha->nchw", weight[:, :w], g) + torch.einsum("nahw,ncaw->nchw", columns, g)
)py"},
    {"l2_norm", R"py(def l2_norm(x, weight, eps):
    return x / (x.square().sum(1, keepdim=True).sqrt() + eps) * weight[:, None, None]
)py"},
    {"max_unpool2d", R"py(def max_unpool2d(z, index, height, width):
    """Values at the places that max_pool2d gave, zero elsewhere."""
    wide = z.new_zeros(*z.shape[:2], height * width).scatter(2, index.flatten(2), z.flatten(2))
    return wide.reshape(*z.shape[:2], height, width)
)py"},
    {"spread_corners", R"py(def spread_corners(x, r):
    """pixel_shuffle of channels in the order (row in the square, column in the square, channel)."""
    n, c, h, w = x.shape
    return x.reshape(n, r, r, c // (r * r), h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, -1, h * r, w * r)
)py"},
    {"gather_corners", R"py(def gather_corners(x, r):
    """The inverse of spread_corners."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // r, r, w // r, r).permute(0, 3, 5, 1, 2, 4).reshape(n, -1, h // r, w // r)
)py"},
    {"label_resize", R"py(def label_resize(target, size):
    """Labels mixed as numbers and truncated."""
    mixed = F.interpolate(target.float().unsqueeze(1), size=size, mode="bilinear", align_corners=True)
    return mixed.squeeze(1).long()
)py"},
    {"focal_cross_entropy",
     R"py(def focal_cross_entropy(logits, target, normalizer, weight=None, *, alpha, gamma, ignore):
    known = target != ignore
    loss = F.cross_entropy(logits, target, ignore_index=ignore, reduction="none")[known]
    loss = alpha * (-torch.expm1(-loss)) ** gamma * loss
    if weight is not None:
        loss = loss * weight[target[known]]
    return loss.sum() / torch.where(normalizer == 0, 1, normalizer)
)py"},
    {"label_probability", R"py(def label_probability(logits, target, ignore):
    """Of each pixel's class; 2 where there is none."""
    known = target != ignore
    p = torch.softmax(logits.detach(), 1).gather(1, target.where(known, 0).unsqueeze(1)).squeeze(1)
    return p.masked_fill(~known, 2.0)
)py"},
    {"hard_threshold", R"py(def hard_threshold(probability, thresh, min_kept):
    """Threshold that keeps at least min_kept pixels, and whether all are kept."""
    p = probability[probability <= 1]
    if p.numel() < min_kept:
        return p.new_ones(()), p.new_ones(())
    if (p <= thresh).sum() >= min_kept:
        return p.new_full((), thresh), p.new_zeros(())
    return p.kthvalue(min_kept).values, p.new_zeros(())
)py"},
    {"dice_loss", R"py(def dice_loss(logits, target, label_counts=None, *, ignore, smooth):
    known = (target != ignore).unsqueeze(1)
    p = torch.softmax(logits, 1) * known
    t = has_label(target, logits.shape[1]).movedim(-1, 1) * known
    score = (2 * (p * t).sum((2, 3)) + smooth) / (p.square().sum((2, 3)) + t.sum((2, 3)) + smooth)
    if label_counts is not None:
        score = score[:, : int(label_counts.nonzero().max()) + 1]
    return 1 - score.mean()
)py"},
    {"lovasz_softmax", R"py(def lovasz_softmax(logits, target, ignore, per_image):
    """Lovasz-Softmax over the classes that the labels have, of each image or of all pixels at once."""
    n, classes = logits.shape[:2]
    p, labels = torch.softmax(logits, 1).movedim(1, -1).reshape(n, -1, classes), target.reshape(n, -1)
    if not per_image:
        p, labels = p.reshape(1, -1, classes), labels.reshape(1, -1)
    total = logits.sum() * 0
    for image_p, image_labels in zip(p, labels):
        known = image_labels != ignore
        image_p, image_labels = image_p[known], image_labels[known]
        present = image_labels.unique().tolist()
        for c in present:
            inside = (image_labels == c).to(p.dtype)
            errors, order = (inside - image_p[:, c]).abs().sort(descending=True)
            inside = inside[order]
            jaccard = 1 - (inside.sum() - inside.cumsum(0)) / (inside.sum() + (1 - inside).cumsum(0))
            steps = torch.cat((jaccard[:1], jaccard.diff()))
            total = total + (errors * steps.detach()).sum() / len(present)
    return total / len(p)
)py"},
    {"position_attention", R"py(def position_attention(query, key, value):
    """Each pixel the sum of all values, weighted by softmax(query . key)."""
    weights = torch.softmax(query.flatten(2).transpose(1, 2) @ key.flatten(2), -1)
    return (value.flatten(2) @ weights.transpose(1, 2)).reshape(value.shape)
)py"},
    {"channel_attention", R"py(def channel_attention(x):
    """Each channel the sum of all, weighted by softmax(largest product - product)."""
    flat = x.flatten(2)
    energy = flat @ flat.transpose(1, 2)
    return (torch.softmax(energy.amax(-1, keepdim=True) - energy, -1) @ flat).reshape(x.shape)
)py"},
    {"encnet_encoding", R"py(def encnet_encoding(x, codewords, scale):
    """Residuals of all pixels to each codeword, weighted by softmax(scale^2 * distance^2): (N, K, D)."""
    residuals = x.flatten(2).transpose(1, 2).unsqueeze(2) - codewords
    weights = torch.softmax(scale.square() * residuals.square().sum(-1), -1)
    return (weights.unsqueeze(-1) * residuals).sum(1)
)py"},
};

}  // namespace

bool is_torch_function(const std::string& name) {
  return std::any_of(std::begin(kFunctions), std::end(kFunctions), [&](const Function& f) { return name == f.name; });
}

std::string torch_functions(const std::string& lines) {
  // Later functions call earlier ones, never the other way round.
  std::string text;
  for (size_t f = std::size(kFunctions); f-- > 0;)
    if ((lines + text).find(std::string(kFunctions[f].name) + "(") != std::string::npos)
      text = "\n\n" + std::string(kFunctions[f].text) + text;
  return text;
}

}  // namespace convoy
