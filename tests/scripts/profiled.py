"""A loop inside torch.profiler with a schedule; the end of the script is written down by `finally`."""

import os

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
loader = DataLoader(TensorDataset(torch.randn(256, 32), torch.randn(256, 1)), batch_size=16, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
try:
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2, repeat=1)) as prof:
        for _ in range(50_000):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                prof.step()
finally:
    if "ENDED_FILE" in os.environ:
        with open(os.environ["ENDED_FILE"], "w") as ended:
            ended.write("finally\n")
