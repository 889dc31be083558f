"""Remarks on where a row's samples came from, in words: a warm page cache, or one that was dropped."""

from __future__ import annotations

from collections.abc import Sequence

from gputune_tui.domain.data_reads import DataReads
from gputune_tui.domain.trial import Launch
from gputune_tui.units import bytes_text

FROM_DISK_FRACTION = 0.5
"""With less than this share of the data coming from disk, the rate is one of the page cache."""
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")


def data_notes(launches: Sequence[Launch]) -> list[str]:
    """What a user should know about the data's temperature; the coldest and the warmest launch speak."""
    notes: list[str] = []
    for launch in launches:
        if launch.data is not None:
            note = _cold_note(launch.data, len(launch.blocks)) if launch.data.cold else _warm_note(launch.data, launch)
            if note is not None:
                notes.append(note)
    # Launches differ by some bytes per sample: one remark of a kind is enough.
    return list({note.partition(":")[0]: note for note in notes}.values())


def came_from_cache(data: DataReads) -> bool | None:
    """True where most of what the blocks read was in memory already; None where that is not known."""
    read, whole = data.disk_bytes_per_sample, data.data_bytes_per_sample
    if read is None:
        return None
    if whole is None:
        return True if read == 0 else None
    return read < whole * FROM_DISK_FRACTION


def fits_in_memory(data: DataReads, taken_bytes: int | None) -> bool | None:
    """True where a page cache could hold all the data beside the `taken_bytes` of the trial; None where not known."""
    if data.data_bytes is None or data.host_memory_bytes is None:
        return None
    return data.data_bytes <= data.host_memory_bytes - (taken_bytes or 0)


def _warm_note(data: DataReads, launch: Launch) -> str | None:
    taken = launch.memory.host_peak_bytes
    if fits_in_memory(data, taken) is not False or not came_from_cache(data):
        return None
    left = max(0, (data.host_memory_bytes or 0) - (taken or 0))
    return (
        f"measured from a warm page cache: the data ({bytes_text(data.data_bytes)}) does not fit in the memory that is "
        f"left ({bytes_text(left)}), so a whole epoch reads from disk; --cold measures that"
    )


def _cold_note(data: DataReads, blocks: int) -> str:
    if data.files == 0:
        return "--cold dropped nothing: no data file was seen"
    if data.disk_bytes_per_sample is None:
        return "measured cold: the page cache was dropped; this kernel does not tell what came from disk"
    if not came_from_cache(data):
        return f"measured cold: {bytes_text(data.disk_bytes_per_sample)} from disk per sample"
    places = [name for name in data.file_systems if name in MEMORY_FILE_SYSTEMS]
    if places and len(places) == len(data.file_systems):
        return f"--cold had no effect: the data is on {', '.join(places)}, which is memory"
    where = f" (on {', '.join(data.file_systems)})" if data.file_systems else ""
    if data.disk_bytes == 0:
        return (
            f"--cold had no effect: the blocks read nothing from disk{where}; the workload may keep its data in memory"
        )
    again = data.dataset_samples is not None and data.samples > blocks * data.dataset_samples
    why = "a block goes through the data more than once" if again else f"most came from memory{where}"
    return f"measured partly cold: {bytes_text(data.disk_bytes_per_sample)} from disk per sample; {why}"
