"""The tutorial's gradient accumulation: the loss divided by N, a step every N batches."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accumulation_steps = 4
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
loader = DataLoader(TensorDataset(torch.randn(1024, 64), torch.randint(0, 10, (1024,))), batch_size=8, shuffle=True)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(200):
    optimizer.zero_grad()
    for i, (inputs, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(inputs), labels) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
