"""A DataLoader tuned by hand: workers, prefetching, pinning, kept alive; the data takes its time."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((32,), index / 256), torch.tensor([float(index % 2)])


def main():
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    loader = DataLoader(
        Slow(), batch_size=8, shuffle=True, num_workers=1, prefetch_factor=4, pin_memory=True, persistent_workers=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(100):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
