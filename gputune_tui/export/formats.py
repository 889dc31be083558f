"""The formats that chosen settings can be written in, by name; the registry has what writes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """One target format."""

    name: str
    """As `--to` takes it."""
    suffix: str
    """Of the file, dot included."""
    help: str
    """What the file is for, in a few words."""

    @property
    def file_name(self) -> str:
        """A name for the file where none is given."""
        middle = "" if self.name in ("yaml", "json") else f"-{self.name}"
        return f"gputune{middle}{self.suffix}"


FORMATS: tuple[Format, ...] = (
    Format("yaml", ".yaml", "gputune.yaml: settings and evidence, for verify"),
    Format("json", ".json", "the same as JSON"),
    Format("accelerate", ".yaml", "for accelerate launch --config_file FILE"),
    Format("transformers", ".yaml", "keys of TrainingArguments"),
    Format("lightning", ".yaml", "the Trainer's section for LightningCLI"),
    Format("deepspeed", ".json", "DeepSpeed's configuration"),
    Format("axolotl", ".yaml", "keys of axolotl's configuration"),
    Format("llama-factory", ".yaml", "keys of LLaMA-Factory's configuration"),
    Format("torchrun", ".sh", "a shell script that starts the job"),
    Format("env", ".env", "environment variables"),
    Format("python", ".py", "a training loop in plain torch"),
    Format("markdown", ".md", "a report with the ranking"),
)
"""In the order in which they are offered."""
NAMES = ", ".join(found.name for found in FORMATS)
