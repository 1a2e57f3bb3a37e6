"""Fast-SCNN and BiSeNet (ResNet-18, output stride 16) in plain PyTorch: the peer of Convoy's own networks.

Parameter names and their order equal Convoy's (and so the golden files'), which lets check_golden.py prove that
both programs compute the same function before their speeds are compared.  Activations run in place wherever autograd
allows it, so that PyTorch's time and memory are its best.

Shapes are (N, C, H, W).  forward() returns a list of logits at the input's size; element 0 is the prediction.
"""

import torch
from torch import nn
from torch.nn import functional as F


def resize(x, size):
    """Bilinear, corners aligned."""
    return F.interpolate(x, size=size, mode="bilinear", align_corners=True)


class ConvBnRelu(nn.Module):
    """conv (no bias), batch norm, ReLU (or ReLU6)."""

    def __init__(self, cin, cout, kernel=1, stride=1, padding=0, groups=1, relu6=False):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride, padding, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU6(inplace=True) if relu6 else nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn(self.conv(x)))


# ---------------------------------------------------------------------------------------------------- Fast-SCNN


class SeparableConv(nn.Module):
    """3x3 depthwise, BN, ReLU, 1x1 pointwise, BN, ReLU."""

    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.block = nn.Sequential()
        self.block.add_module("depthwise", nn.Conv2d(cin, cin, 3, stride, 1, groups=cin, bias=False))
        self.block.add_module("bn_depth", nn.BatchNorm2d(cin))
        self.block.add_module("relu1", nn.ReLU(inplace=True))
        self.block.add_module("pointwise", nn.Conv2d(cin, cout, 1, bias=False))
        self.block.add_module("bn_point", nn.BatchNorm2d(cout))
        self.block.add_module("relu2", nn.ReLU(inplace=True))

    def forward(self, x):
        return self.block(x)


class InvertedResidual(nn.Module):
    """1x1 expansion by 6, 3x3 depthwise, linear 1x1 projection; the input is added where the shapes agree."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        mid = 6 * cin
        self.residual = stride == 1 and cin == cout
        self.conv = nn.Sequential(
            ConvBnRelu(cin, mid, relu6=True),
            ConvBnRelu(mid, mid, 3, stride, 1, groups=mid, relu6=True),
            nn.Conv2d(mid, cout, 1, bias=False),
            nn.BatchNorm2d(cout),
        )

    def forward(self, x):
        y = self.conv(x)
        return y.add_(x) if self.residual else y


class PyramidPooling(nn.Module):
    """Average pools to 1, 2, 3 and 6 bins, 1x1 convs to a quarter of the channels, resized and concatenated."""

    def __init__(self, channels, bins=(1, 2, 3, 6)):
        super().__init__()
        self.avgpools = nn.ModuleList(nn.AdaptiveAvgPool2d(b) for b in bins)
        self.convs = nn.ModuleList(ConvBnRelu(channels, channels // len(bins)) for _ in bins)

    def forward(self, x):
        parts = [resize(conv(pool(x)), x.shape[2:]) for pool, conv in zip(self.avgpools, self.convs)]
        return torch.cat([x] + parts, dim=1)


class LearningToDownsample(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = ConvBnRelu(3, 32, 3, 2)
        self.dsconv1 = SeparableConv(32, 48, 2)
        self.dsconv2 = SeparableConv(48, 64, 2)

    def forward(self, x):
        return self.dsconv2(self.dsconv1(self.conv(x)))


class GlobalFeatureExtractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottleneck1 = self._stage(64, 64, 2)
        self.bottleneck2 = self._stage(64, 96, 2)
        self.bottleneck3 = self._stage(96, 128, 1)
        self.ppm = PyramidPooling(128)
        self.out = ConvBnRelu(256, 128)

    @staticmethod
    def _stage(cin, cout, stride):
        return nn.Sequential(
            InvertedResidual(cin, cout, stride), InvertedResidual(cout, cout, 1), InvertedResidual(cout, cout, 1)
        )

    def forward(self, x):
        x = self.bottleneck3(self.bottleneck2(self.bottleneck1(x)))
        return self.out(self.ppm(x))


class FeatureFusion(nn.Module):
    """The low branch is upsampled by a fixed factor of 4: the high branch must be exactly that size."""

    def __init__(self):
        super().__init__()
        self.dwconv = ConvBnRelu(128, 128)
        self.conv_lower_res = nn.Sequential(nn.Conv2d(128, 128, 1), nn.BatchNorm2d(128))
        self.conv_higher_res = nn.Sequential(nn.Conv2d(64, 128, 1), nn.BatchNorm2d(128))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, high, low):
        low = resize(low, (4 * low.shape[2], 4 * low.shape[3]))
        low = self.conv_lower_res(self.dwconv(low))
        return self.relu(self.conv_higher_res(high).add_(low))


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.dsconv1 = SeparableConv(128, 128)
        self.dsconv2 = SeparableConv(128, 128)
        self.conv = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(128, classes, 1))

    def forward(self, x):
        return self.conv(self.dsconv2(self.dsconv1(x)))


class FastScnn(nn.Module):
    """H and W: the 1/8 map must be divisible by 4 (multiples of 32 always are right)."""

    multiple = 32

    def __init__(self, classes=19, aux=True, bn_momentum=0.01):
        super().__init__()
        self.learning_to_downsample = LearningToDownsample()
        self.global_feature_extractor = GlobalFeatureExtractor()
        self.feature_fusion = FeatureFusion()
        self.classifier = Classifier(classes)
        self.aux = aux
        if aux:
            self.auxlayer1 = self._aux_head(64, classes)
            self.auxlayer2 = self._aux_head(128, classes)
        set_bn_momentum(self, bn_momentum)

    @staticmethod
    def _aux_head(cin, classes):
        return nn.Sequential(
            nn.Conv2d(cin, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.Dropout2d(0.1),
            nn.Conv2d(32, classes, 1),
        )

    def forward(self, x):
        size = x.shape[2:]
        high = self.learning_to_downsample(x)
        low = self.global_feature_extractor(high)
        logits = [self.classifier(self.feature_fusion(high, low))]
        if self.aux:
            logits += [self.auxlayer1(high), self.auxlayer2(low)]
        return [resize(y, size) for y in logits]


# ------------------------------------------------------------------------------------------------------ BiSeNet


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride, dilation1, dilation2):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, dilation1, dilation=dilation1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, dilation2, dilation=dilation2, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
        else:
            self.downsample = None

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(y.add_(shortcut))


class ResNet18(nn.Module):
    """ResNet-18 at output stride 16; forward() returns the maps at 1/4, 1/8, 1/16, 1/16.

    The classification layer `fc` is only carried for its parameters' names: it takes no part in the forward pass.
    """

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1, 1, 1), BasicBlock(64, 64, 1, 1, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2, 1, 1), BasicBlock(128, 128, 1, 1, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2, 1, 1), BasicBlock(256, 256, 1, 1, 1))
        # The stride of the last stage becomes a dilation of 2, except in its very first convolution.
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 1, 1, 2), BasicBlock(512, 512, 1, 2, 2))
        self.fc = nn.Linear(512, 1000)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        c1 = self.layer1(x)
        c2 = self.layer2(c1)
        c3 = self.layer3(c2)
        return c1, c2, c3, self.layer4(c3)


class SpatialPath(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv7x7 = ConvBnRelu(3, 64, 7, 2, 3)
        self.conv3x3_1 = ConvBnRelu(64, 64, 3, 2, 1)
        self.conv3x3_2 = ConvBnRelu(64, 64, 3, 2, 1)
        self.conv1x1 = ConvBnRelu(64, 128)

    def forward(self, x):
        return self.conv1x1(self.conv3x3_2(self.conv3x3_1(self.conv7x7(x))))


class GlobalContext(nn.Module):
    """Global average pool, 1x1 conv, BN, ReLU, spread over `size`.  The batch needs more than one image."""

    def __init__(self, cin, cout):
        super().__init__()
        self.gap = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(cin, cout, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)
        )

    def forward(self, x):
        return resize(self.gap(x), x.shape[2:])


class AttentionRefinement(nn.Module):
    """3x3 conv-BN-ReLU scaled per channel by sigmoid(conv-BN-ReLU of its global mean)."""

    def __init__(self, cin, cout):
        super().__init__()
        self.conv3x3 = ConvBnRelu(cin, cout, 3, 1, 1)
        self.channel_attention = nn.Sequential(nn.AdaptiveAvgPool2d(1), ConvBnRelu(cout, cout), nn.Sigmoid())

    def forward(self, x):
        x = self.conv3x3(x)
        return x * self.channel_attention(x)


class ContextPath(nn.Module):
    """Global context, then twice: attention, sum, resize to the next map, 3x3 refine.  Returns both refined maps."""

    def __init__(self):
        super().__init__()
        self.global_context = GlobalContext(512, 128)
        self.arms = nn.ModuleList([AttentionRefinement(512, 128), AttentionRefinement(256, 128)])
        self.refines = nn.ModuleList([ConvBnRelu(128, 128, 3, 1, 1), ConvBnRelu(128, 128, 3, 1, 1)])

    def forward(self, c2, c3, c4):
        y = self.global_context(c4)
        outputs = []
        for feature, next_map, arm, refine in zip((c4, c3), (c3, c2), self.arms, self.refines):
            y = refine(resize(arm(feature).add_(y), next_map.shape[2:]))
            outputs.append(y)
        return outputs


class BiSeNetFusion(nn.Module):
    """1x1 conv-BN-ReLU of the concatenation, plus itself times a channel gate."""

    def __init__(self):
        super().__init__()
        self.conv1x1 = ConvBnRelu(256, 256)
        self.channel_attention = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), ConvBnRelu(256, 64), ConvBnRelu(64, 256), nn.Sigmoid()
        )

    def forward(self, spatial, context):
        x = self.conv1x1(torch.cat([spatial, context], dim=1))
        return x + x * self.channel_attention(x)


class BiSeNetHead(nn.Module):
    def __init__(self, cin, mid, classes):
        super().__init__()
        self.block = nn.Sequential(ConvBnRelu(cin, mid, 3, 1, 1), nn.Dropout(0.1), nn.Conv2d(mid, classes, 1))

    def forward(self, x):
        return self.block(x)


class BiSeNet(nn.Module):
    """BiSeNet on ResNet-18; any H, W that are multiples of 16."""

    multiple = 16

    def __init__(self, classes=19, aux=False, bn_momentum=0.1):
        super().__init__()
        self.encoder = ResNet18()
        self.spatial_path = SpatialPath()
        self.context_path = ContextPath()
        self.ffm = BiSeNetFusion()
        self.head = BiSeNetHead(256, 64, classes)
        self.aux = aux
        if aux:
            self.auxlayer1 = BiSeNetHead(128, 256, classes)
            self.auxlayer2 = BiSeNetHead(128, 256, classes)
        set_bn_momentum(self, bn_momentum)

    def forward(self, x):
        size = x.shape[2:]
        spatial = self.spatial_path(x)
        _, c2, c3, c4 = self.encoder(x)
        low, high = self.context_path(c2, c3, c4)
        logits = [self.head(self.ffm(spatial, high))]
        if self.aux:
            logits += [self.auxlayer1(low), self.auxlayer2(high)]
        return [resize(y, size) for y in logits]


# ------------------------------------------------------------------------------------------- colour-only baselines


class ColorClassifier(nn.Module):
    """Classifies every pixel from its own colour: what a data set can be solved to without looking at shapes."""

    multiple = 1

    def __init__(self, classes=19, hidden=0):
        super().__init__()
        if hidden:
            self.net = nn.Sequential(nn.Conv2d(3, hidden, 1), nn.ReLU(inplace=True), nn.Conv2d(hidden, classes, 1))
        else:
            self.net = nn.Conv2d(3, classes, 1)

    def forward(self, x):
        return [self.net(x)]


def set_bn_momentum(net, momentum):
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = momentum


def mixed_cross_entropy(logits, target, aux_weight=0.4, ignore=-1):
    """Mean cross entropy over labelled pixels; each further output is added with `aux_weight`."""
    loss = F.cross_entropy(logits[0], target, ignore_index=ignore)
    for extra in logits[1:]:
        loss = loss + aux_weight * F.cross_entropy(extra, target, ignore_index=ignore)
    return loss
