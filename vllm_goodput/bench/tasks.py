# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Task types of the agentic mix: lengths fitted to recorded agent runs.

Every length is a log-normal, given by its median in tokens (cl100k_base) and the standard deviation of its logarithm.
A session's first prompt has a fit of its own; every later one is the previous prompt and output plus a growth (tool
results, user turns). Only these figures come from the sources.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LogNormal:
    """A log-normal length: `median` in tokens, `log_sigma` of its natural logarithm."""

    median: float
    log_sigma: float


@dataclass(frozen=True)
class TaskSpec:
    """Lengths of one task type.

    Args:
        prompt: prompt of a session's first turn.
        output: output of every turn.
        mean_turns: mean number of turns of a session.
        growth: tokens that a turn adds to the previous prompt and output.
        sources: where the figures come from.
        licence: of the sources.
    """

    prompt: LogNormal
    output: LogNormal
    mean_turns: float = 1.0
    growth: LogNormal = LogNormal(1.0, 0.0)
    sources: str = ""
    licence: str = ""


TASKS: dict[str, TaskSpec] = {
    "text_to_sql": TaskSpec(
        LogNormal(19, 0.35),
        LogNormal(28, 0.90),
        2.7,
        LogNormal(17, 1.22),
        "princeton-nlp/intercode, MohammadrezaPourreza/Few-shot-NL2SQL-with-prompting, BeachWang/DAIL-SQL",
        "MIT, Apache-2.0",
    ),
    "math": TaskSpec(
        LogNormal(54, 0.84),
        LogNormal(81, 0.80),
        sources="openai/grade-school-math, wenhuchen/Program-of-Thoughts",
        licence="MIT",
    ),
    "code_gen": TaskSpec(
        LogNormal(175, 1.16),
        LogNormal(104, 0.96),
        1.2,
        LogNormal(10, 0.39),
        "LiveCodeBench/submissions, noahshinn/reflexion, princeton-nlp/intercode",
        "MIT",
    ),
    "bash_agent": TaskSpec(
        LogNormal(19, 0.49),
        LogNormal(29, 0.86),
        6.0,
        LogNormal(17, 1.52),
        "princeton-nlp/intercode",
        "MIT",
    ),
    "api_codegen": TaskSpec(
        LogNormal(27, 1.12),
        LogNormal(187, 0.51),
        sources="ShishirPatil/gorilla",
        licence="Apache-2.0",
    ),
    "multi_hop_qa": TaskSpec(
        LogNormal(38, 1.30),
        LogNormal(44, 0.32),
        3.1,
        LogNormal(90, 1.10),
        "noahshinn/reflexion",
        "MIT",
    ),
    "customer_service": TaskSpec(
        LogNormal(1277, 0.01),
        LogNormal(45, 0.70),
        12.4,
        LogNormal(32, 1.44),
        "sierra-research/tau-bench",
        "MIT",
    ),
    "creative_writing": TaskSpec(
        LogNormal(95, 0.18),
        LogNormal(361, 0.16),
        sources="princeton-nlp/tree-of-thought-llm",
        licence="MIT",
    ),
    "tool_calling": TaskSpec(
        LogNormal(1595, 0.37),
        LogNormal(43, 0.84),
        5.0,
        LogNormal(64, 1.26),
        "OpenBMB/ToolBench",
        "Apache-2.0",
    ),
}
