"""`checkpoint_sequential` over a flat nn.Sequential."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

layers = []
for _ in range(8):
    layers += [nn.Linear(64, 64), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(64, 1))
loader = DataLoader(TensorDataset(torch.randn(512, 64), torch.randn(512, 1)), batch_size=16, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(300):
    for x, y in loader:
        optimizer.zero_grad()
        out = checkpoint_sequential(model, 4, x.requires_grad_(), use_reentrant=False)
        nn.functional.mse_loss(out, y).backward()
        optimizer.step()
