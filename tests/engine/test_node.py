"""Which device a study runs on, and the budget its trials are held to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.engine.node import (
    ChosenDevice,
    choose_device,
    default_host_budget,
    device_memory,
    read_budget,
    resolve_budget,
    users_visible_devices,
    visible_gpus,
)
from gputune_tui.errors import EnvironmentProblem, ExitCode, UsageError
from gputune_tui.telemetry.host import HostLimits
from gputune_tui.telemetry.nvml import GpuInfo, GpuProbe

GIB = 1 << 30
A = GpuInfo(0, "GPU-aaaa1111-0000-0000-0000-000000000001", "H200", 141 * GIB, 100 * GIB)
B = GpuInfo(1, "GPU-aaaa2222-0000-0000-0000-000000000002", "H200", 141 * GIB, 140 * GIB)
C = GpuInfo(2, "GPU-cccc3333-0000-0000-0000-000000000003", "L4", 24 * GIB, None)
LOST = GpuInfo(3, None, None, None, None)
HOST = HostLimits(8.0, None, 64 * GIB, 40 * GIB, GIB)


def node() -> GpuProbe:
    return GpuProbe("570.1", (A, B, C), None)


def no_gpu() -> GpuProbe:
    return GpuProbe(None, (), "no NVIDIA GPU: Driver Not Loaded")


def never() -> GpuProbe:
    raise AssertionError("NVML must not be asked for this")


@pytest.mark.parametrize(
    ("wanted", "gpu", "label"),
    [
        (None, A, "cuda:0"),
        ("cuda", A, "cuda"),
        ("cuda:1", B, "cuda:1"),
        (B.uuid, B, B.uuid),
        ("GPU-cccc", C, "GPU-cccc"),
    ],
)
def test_a_gpu_is_found_by_number_and_uuid(wanted: str | None, gpu: GpuInfo, label: str) -> None:
    device = choose_device(wanted, node)
    # The trial sees that one card alone, so there it is always cuda:0.
    assert device == ChosenDevice("cuda:0", label, gpu, "570.1")


def test_the_cpu_needs_no_driver() -> None:
    assert choose_device("cpu", never) == ChosenDevice("cpu", "cpu", None, None)


@pytest.mark.parametrize(
    "wanted", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "mps", "cpu:0", "GPU-", "GPU-zz", "0"]
)
def test_other_names_are_refused_before_the_driver_is_asked(wanted: str) -> None:
    with pytest.raises(UsageError, match="is not a device; write cpu, cuda, cuda:1 or a GPU's UUID"):
        choose_device(wanted, never)


@pytest.mark.parametrize("wanted", ["cuda:3", "GPU-dddd"])
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_device(wanted, node)
    assert f"there is no device {wanted}" in str(caught.value)
    assert f"cuda:0 {A.uuid}, cuda:1 {B.uuid}" in str(caught.value)
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_uuid_that_begins_two_gpus_is_refused() -> None:
    with pytest.raises(UsageError, match="GPU-aaaa is the beginning of several UUIDs; this node has cuda:0 GPU-aaaa1"):
        choose_device("GPU-aaaa", node)


def test_a_lost_gpu_is_never_taken_for_another() -> None:
    def with_lost() -> GpuProbe:
        return GpuProbe("570.1", (LOST, B), None)

    with pytest.raises(EnvironmentProblem, match="cuda:0 does not tell its UUID"):
        choose_device("cuda:0", with_lost)
    assert choose_device("cuda:1", with_lost).gpu == B
    unasked = choose_device(None, with_lost)
    assert (unasked.gpu, unasked.label) == (B, "cuda:1")
    with pytest.raises(EnvironmentProblem, match="does not tell its UUID"):
        choose_device(None, lambda: GpuProbe(None, (LOST,), None))


@pytest.mark.parametrize("wanted", ["cuda", "cuda:0", "GPU-aaaa"])
def test_a_gpu_that_this_node_lacks_is_a_problem_of_the_environment(wanted: str) -> None:
    with pytest.raises(EnvironmentProblem) as caught:
        choose_device(wanted, no_gpu)
    assert f"--device {wanted} is not possible: no NVIDIA GPU: Driver Not Loaded" in str(caught.value)
    assert "--device cpu" in str(caught.value)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_without_a_wish_the_cpu_takes_the_place_of_a_missing_gpu_and_says_so() -> None:
    device = choose_device(None, no_gpu)
    assert device.spec == "cpu"
    assert device.note == "no NVIDIA GPU: Driver Not Loaded; trials run on the CPU"


def test_numbers_count_within_what_the_user_may_see() -> None:
    assert choose_device("cuda:1", node, "2,0").gpu == A
    assert choose_device("cuda", node, "2,0").gpu == C
    with pytest.raises(UsageError, match="there is no device cuda:2"):
        choose_device("cuda:2", node, "2,0")
    with pytest.raises(UsageError, match="there is no device GPU-aaaa2222"):
        choose_device("GPU-aaaa2222", node, "0")


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles", "9,0"])
def test_hidden_gpus_are_none(visible: str) -> None:
    assert choose_device(None, node, visible).spec == "cpu"
    with pytest.raises(EnvironmentProblem, match="no NVIDIA GPU is visible"):
        choose_device("cuda", node, visible)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [A, B, C, LOST]),
        ("0", [A]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        (f"{B.uuid}", [B]),
        ("GPU-cccc,GPU-aaaa1", [C, A]),
        ("GPU-cccc,1", [C, B]),
        ("0,-1,1", [A]),
        ("1,7,0", [B]),
        ("", []),
        ("-1", []),
        ("GPU-dead", []),
        ("2,GPU-aaaa,0", [C]),
        ("3", [LOST]),
    ],
)
def test_visible_devices_as_cuda_reads_them(visible: str | None, expected: list[GpuInfo]) -> None:
    assert visible_gpus((A, B, C, LOST), visible) == expected


def test_the_users_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert users_visible_devices() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert users_visible_devices() == ""


CPU = ChosenDevice("cpu", "cpu", None, None)


def on(gpu: GpuInfo) -> ChosenDevice:
    return ChosenDevice("cuda:0", "cuda:0", gpu, None)


@pytest.mark.parametrize(
    ("text", "device", "expected"),
    [
        ("20GiB", on(A), 20 * GIB),
        ("20GB", on(A), 20 * 10**9),
        ("80%", on(A), int(141 * GIB * 0.8)),
        (" 12.5 % ", CPU, 8 * GIB),
        ("100%", CPU, 64 * GIB),
        ("4GiB", CPU, 4 * GIB),
        ("16GiB", on(LOST), 16 * GIB),
    ],
)
def test_a_given_budget(text: str, device: ChosenDevice, expected: int) -> None:
    budget = resolve_budget(text, None, device, HOST)
    assert budget.device_bytes == expected
    assert budget.source == f"--budget {text.strip()}"


@pytest.mark.parametrize(
    ("device", "host", "expected", "words"),
    [
        (on(A), HOST, 90 * GIB, "90 % of what is free on the device (100 GiB)"),
        (CPU, HOST, 36 * GIB, "90 % of the available memory (40.0 GiB)"),
        (
            CPU,
            HostLimits(2.0, 10 * GIB, 10 * GIB, 8 * GIB, GIB),
            int(7.2 * GIB),
            "90 % of what the cgroup leaves (8.00 GiB)",
        ),
    ],
)
def test_the_default_is_90_percent_of_what_is_free(
    device: ChosenDevice, host: HostLimits, expected: int, words: str
) -> None:
    budget = resolve_budget(None, None, device, host)
    assert budget.device_bytes == expected
    assert budget.source == words


@pytest.mark.parametrize("gpu", [C, LOST])
def test_a_device_that_does_not_tell_its_memory_needs_a_budget(gpu: GpuInfo) -> None:
    with pytest.raises(UsageError, match="cuda:0 does not tell its free memory; give a budget"):
        resolve_budget(None, None, on(gpu), HOST)


def test_a_percentage_of_an_unknown_total_is_refused() -> None:
    with pytest.raises(UsageError, match="--budget: the device does not tell its total memory"):
        resolve_budget("80%", None, on(LOST), HOST)


@pytest.mark.parametrize("text", ["", "lots", "0", "0%", "101%", "-5%", "80 percent", "nan%", "4GiB%"])
def test_what_is_no_budget_is_refused_by_its_option(text: str) -> None:
    for option in ("--budget", "--host-budget"):
        with pytest.raises(UsageError, match=f"^{option}: "):
            read_budget(text, 64 * GIB, option)


def test_the_hosts_budget_is_of_the_hosts_memory() -> None:
    assert resolve_budget("1GiB", "50%", on(A), HOST).host_bytes == 32 * GIB
    assert resolve_budget(None, "3GiB", on(A), HOST).host_bytes == 3 * GIB
    with pytest.raises(UsageError, match="--host-budget"):
        resolve_budget("1GiB", "much", on(A), HOST)


@pytest.mark.parametrize(
    ("total", "limit", "expected", "words"),
    [
        (64 * GIB, None, 64 * GIB - int(6.4 * GIB), "the host's memory (64.0 GiB) less a reserve of 6.40 GiB"),
        (1024 * GIB, None, 1016 * GIB, "the host's memory (1.00 TiB) less a reserve of 8.00 GiB"),
        (2 * GIB, 2 * GIB, int(1.5 * GIB), "the cgroup's memory limit (2.00 GiB) less a reserve of 512 MiB"),
        (GIB // 2, GIB // 2, GIB // 4, "the cgroup's memory limit (512 MiB) less a reserve of 256 MiB"),
    ],
)
def test_without_a_hosts_budget_all_but_a_reserve_is_one(
    total: int, limit: int | None, expected: int, words: str
) -> None:
    host = HostLimits(2.0, limit, total, total // 2, GIB)
    for device in (CPU, on(A)):
        budget = resolve_budget("1GiB", None, device, host)
        assert (budget.host_bytes, budget.host_source, budget.host_is_default) == (expected, words, True)


def test_a_hosts_budget_that_was_asked_for_is_no_default() -> None:
    budget = resolve_budget("1GiB", "25%", CPU, HOST)
    assert (budget.host_bytes, budget.host_source) == (16 * GIB, "--host-budget 25%")
    assert not budget.host_is_default


@given(st.integers(0, 1 << 50))
def test_the_reserve_never_takes_more_than_half(total: int) -> None:
    host_bytes, _ = default_host_budget(HostLimits(2.0, None, total, total, None))
    assert total // 2 <= host_bytes <= total
    assert total - host_bytes <= 8 * GIB


def test_what_a_device_has() -> None:
    assert device_memory(CPU, HOST)[:2] == (64 * GIB, 40 * GIB)
    assert device_memory(on(C), HOST)[:2] == (24 * GIB, None)
