# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The step padder, driven by an injected clock."""

from __future__ import annotations

import pytest

from vllm_goodput.emulation import DeviceProfile, StepPadder, StepWork, load_profile, profile_names
from vllm_goodput.errors import ConfigError

PROFILE = DeviceProfile(
    device="d",
    model="m",
    base_s=0.010,
    per_prefill_token_s=0.001,
    per_running_seq_s=0.002,
    sources={},
)


class Time:
    def __init__(self):
        self.now_s = 100.0

    def clock(self):
        return self.now_s

    def sleep(self, seconds):
        assert seconds >= 0
        self.now_s += seconds


def padder(time, scale=1.0):
    return StepPadder(PROFILE, scale, time.clock, time.sleep)


def step(time, pad, work, real_s, key=1):
    pad.begin(key, work, time.now_s)
    time.now_s += real_s
    pad.finish(key)


def test_a_fast_step_is_padded_to_the_profile():
    time = Time()
    pad = padder(time)
    step(time, pad, StepWork(prefill_tokens=5, sequences=2), real_s=0.001)
    assert time.now_s == pytest.approx(100 + 0.010 + 5 * 0.001 + 2 * 0.002)
    assert (pad.steps, pad.overruns) == (1, 0)


def test_scale_multiplies_the_whole_step():
    time = Time()
    step(time, padder(time, scale=3), StepWork(0, 1), real_s=0.001)
    assert time.now_s == pytest.approx(100 + 3 * 0.012)


def test_a_slow_step_is_never_lengthened_and_is_counted():
    time = Time()
    pad = padder(time)
    step(time, pad, StepWork(0, 1), real_s=0.020)
    assert time.now_s == pytest.approx(100.020)
    assert pad.stats()["overruns"] == 1
    assert pad.stats()["overrun_s"] == pytest.approx(0.008)
    assert not pad.stats()["valid"]


def test_back_to_back_steps_hide_the_time_between_them():
    time = Time()
    pad = padder(time)
    step(time, pad, StepWork(0, 1), real_s=0.001)
    pad.set_busy(True)
    time.now_s += 0.003  # the host processes outputs
    step(time, pad, StepWork(0, 1), real_s=0.001)
    assert time.now_s == pytest.approx(100 + 2 * 0.012)


def test_an_idle_gap_does_not_shorten_the_next_step():
    time = Time()
    pad = padder(time)
    step(time, pad, StepWork(0, 1), real_s=0.001)
    pad.set_busy(False)
    time.now_s += 5
    step(time, pad, StepWork(0, 1), real_s=0.001)
    assert time.now_s == pytest.approx(105 + 2 * 0.012)


def test_a_step_in_flight_starts_when_the_one_before_ends():
    """As on a GPU: the second step is scheduled before the first has finished."""
    time = Time()
    pad = padder(time)
    pad.begin(1, StepWork(0, 1), time.now_s)
    pad.begin(2, StepWork(0, 1), time.now_s)
    pad.finish(1)
    assert time.now_s == pytest.approx(100.012)
    pad.finish(2)
    assert time.now_s == pytest.approx(100.024)


def test_steps_without_work_cost_nothing():
    time = Time()
    pad = padder(time)
    step(time, pad, StepWork(0, 0), real_s=0.0)
    assert (time.now_s, pad.steps) == (100.0, 0)


def test_shipped_profiles_are_complete_and_rank_as_the_devices_do():
    assert {"h100", "a100", "l40s", "t4"} <= set(profile_names())
    profiles = [load_profile(n) for n in ("h100", "a100", "l40s", "t4")]
    times = [p.step_s(StepWork(0, 16)) for p in profiles]
    assert times == sorted(times)
    for profile in profiles:
        assert set(profile.sources) == {"base_s", "per_prefill_token_s", "per_running_seq_s"}


def test_an_unknown_profile_names_the_known_ones():
    with pytest.raises(ConfigError, match="h100"):
        load_profile("h999")


def test_a_profile_file_can_be_given(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(PROFILE.model_dump_json())
    assert load_profile(str(path)) == PROFILE
    path.write_text("device: d")
    with pytest.raises(ConfigError, match="base_s"):
        load_profile(str(path))
