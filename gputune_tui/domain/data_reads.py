"""Where the samples of a launch's timed blocks came from: disk or page cache, and how large the data is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataReads:
    """What one launch read; None where the kernel or the workload does not tell."""

    samples: int
    """Of the timed blocks."""
    disk_bytes: int | None
    """Read from storage during these blocks by the trial and its loader workers (`read_bytes` of proc(5) io)."""
    files: int = 0
    """Data files that are known: those that were opened and those beside them."""
    data_bytes: int | None = None
    """Total size of these files."""
    dataset_samples: int | None = None
    """Length of the dataset."""
    host_memory_bytes: int | None = None
    """Memory of the host or, where it is less, the limit of its cgroup: what a page cache could hold at most."""
    cold: bool = False
    """The page cache of these files was dropped before each timed block."""
    file_systems: tuple[str, ...] = ()
    """Types of the file systems that the files are on."""

    @property
    def disk_bytes_per_sample(self) -> float | None:
        """Bytes read from storage for each sample."""
        return None if self.disk_bytes is None or self.samples < 1 else self.disk_bytes / self.samples

    @property
    def data_bytes_per_sample(self) -> float | None:
        """Bytes of data that there are for each sample of the dataset."""
        if not self.data_bytes or not self.dataset_samples:
            return None
        return self.data_bytes / self.dataset_samples
