"""In the manner of the ImageNet example: --workers, --batch-size, AMP of its own, a scheduler for each iteration."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description="training on images")
parser.add_argument("-j", "--workers", default=0, type=int)
parser.add_argument("-b", "--batch-size", default=16, type=int)
parser.add_argument("--epochs", default=50, type=int)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--print-freq", default=10, type=int)


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n


class FakeImages(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 40, 40, generator=generator)
        return nn.functional.interpolate(image[None], size=32)[0], index % 10


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x):
        return x + torch.relu(self.bn(self.conv(x)))


class SmallResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.layers = nn.Sequential(*[Block(16) for _ in range(3)])
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


def train(loader, model, criterion, optimizer, scheduler, epoch, args):
    batch_time, data_time = AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        data_time.update(time.time() - end)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.amp):
            loss = criterion(model(images), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            print(f"[{epoch}][{i}/{len(loader)}] loss {loss.item():.3f}")


def main():
    args = parser.parse_args()
    model = SmallResNet()
    loader = DataLoader(
        FakeImages(), batch_size=args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        train(loader, model, criterion, optimizer, scheduler, epoch, args)


if __name__ == "__main__":
    main()
