"""Small versions of torchvision's models, made of its own parts: a whole trial of one takes seconds on a CPU."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.rpn import RPNHead
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.ops import MultiScaleRoIAlign

LEVELS = ("layer2", "layer3", "layer4")
LEVEL_CHANNELS = (32, 64, 128)
CHANNELS = 32
"""Of the feature pyramid."""
ROI_SIDE = 5
HEAD_WIDTH = 128


class NarrowResNet(ResNet):
    """ResNet-18 with a quarter of the channels in its blocks; 0.7 million parameters."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(BasicBlock, [2, 2, 2, 2])
        self.fc = nn.Linear(self.inplanes, num_classes)

    def _make_layer(self, block: type[nn.Module], planes: int, *args: Any, **options: Any) -> nn.Sequential:
        return super()._make_layer(block, planes // 4, *args, **options)


def narrow_faster_rcnn(num_classes: int, **options: Any) -> FasterRCNN:
    """Faster R-CNN with a feature pyramid over `NarrowResNet`; 0.9 million parameters."""
    names = [str(level) for level in range(len(LEVELS))]
    backbone = BackboneWithFPN(
        NarrowResNet(1), dict(zip(LEVELS, names, strict=True)), list(LEVEL_CHANNELS), CHANNELS, extra_blocks=None
    )
    # BackboneWithFPN adds one level of its own by pooling.
    anchors = AnchorGenerator(((16,), (32,), (64,), (96,)), ((0.5, 1.0, 2.0),) * 4)
    return FasterRCNN(
        backbone,
        rpn_anchor_generator=anchors,
        rpn_head=RPNHead(CHANNELS, anchors.num_anchors_per_location()[0]),
        box_roi_pool=MultiScaleRoIAlign(names, output_size=ROI_SIDE, sampling_ratio=2),
        box_head=TwoMLPHead(CHANNELS * ROI_SIDE**2, HEAD_WIDTH),
        box_predictor=FastRCNNPredictor(HEAD_WIDTH, num_classes),
        **options,
    )
