"""What scripts do that do not train as hoped; the first argument says which."""

import sys

import torch
from torch import nn

what = sys.argv[1]
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step():
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()


if what == "crash":
    for _ in range(6):
        step()
    raise ValueError("no such label: 11")
if what == "early":
    for _ in range(2):
        step()
    sys.exit(0)
if what == "exit-code":
    sys.exit(7)
if what == "megabytes":
    while True:
        print("x" * 100_000)
        step()
if what == "never":
    print("nothing to train")
if what == "two-optimizers":
    other = nn.Linear(4, 1)
    second = torch.optim.SGD(other.parameters(), lr=0.01)
    while True:
        step()
        second.zero_grad()
        other(torch.randn(8, 4)).pow(2).mean().backward()
        second.step()
