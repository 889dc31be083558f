"""transformers.Trainer on a tiny model built from a configuration."""

import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Words(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        ids = torch.randint(0, 100, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def main():
    config = GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=sys.argv[1] if len(sys.argv) > 1 else folder,
            per_device_train_batch_size=8,
            num_train_epochs=100,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        )
        Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Words()).train()


if __name__ == "__main__":
    main()
