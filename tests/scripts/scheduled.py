"""AdamW with clipping and a schedule over len(loader), gradients cleared after the step, the last batch dropped."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return x + self.drop(self.down(torch.tanh(self.up(self.norm(x)))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--save", default="")
    parser.add_argument("--dropout", type=float, default=0.0)
    args = parser.parse_args()
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    data = TensorDataset(torch.randn(1000, 16), torch.randint(0, 5, (1000,)))
    loader = DataLoader(data, 64, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(16, 24), *[Block(24) for _ in range(3)], nn.Linear(24, 5))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = args.dropout
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=args.epochs * len(loader))
    for _ in range(args.epochs):
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
