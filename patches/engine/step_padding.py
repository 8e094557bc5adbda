# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Emulation: pads every engine step to a device profile's time. Applied always, acts only where emulation is on."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm_goodput.patches.base import Patch, Target


def _wrap_schedule(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_goodput.emulation import padder_of, step_work

        padder = padder_of(self)
        if padder is None:
            return original(self, *args, **kwargs)
        started_s = padder.now_s()
        output = original(self, *args, **kwargs)
        padder.begin(id(output), step_work(output), started_s)
        return output

    return schedule


def _wrap_update(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        from vllm_goodput.emulation import padder_of

        padder = padder_of(self)
        if padder is None:
            return original(self, scheduler_output, model_runner_output)
        padder.finish(id(scheduler_output))
        outputs = original(self, scheduler_output, model_runner_output)
        padder.set_busy(self.has_unfinished_requests())
        return outputs

    return update_from_output


PATCH = Patch(
    name="step_padding",
    targets=(
        Target(
            "vllm.v1.core.sched.scheduler:Scheduler.schedule",
            "(self, throttle_prefills: bool=False)",
            _wrap_schedule,
        ),
        Target(
            "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
            "(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput)",
            _wrap_update,
        ),
    ),
    why="Emulating an unequal device needs every step, synchronous or in flight, to take that device's time; "
    "the scheduler sees both ends of every step in both modes.",
    how="schedule() notes the step's work and start; update_from_output() sleeps until start + profile time.",
    supported=">=0.32,<0.34",
    remove_when="vLLM offers a hook around each engine step.",
)
