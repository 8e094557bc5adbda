# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The files a deployment writes itself, and what `--dry-run` prints, where secrets stay hidden."""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path

import yaml

from vllm_goodput.config import PoolConfig
from vllm_goodput.deploy.plan import Plan, ProcessSpec
from vllm_goodput.errors import DeployError
from vllm_goodput.files import replace_file

_SECRET_WORDS = {"secret", "token", "password", "passwd", "key", "credential", "credentials"}
HIDDEN = "***"


def check_log_dir(path: Path) -> None:
    """Create the log directory and make sure that files can be written there.

    Raises:
        DeployError: they cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise DeployError(f"log directory {path} cannot be written: {error.strerror}") from None


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace `path` by a file with `text`; readers see the old or the new one, never a part.

    Raises:
        DeployError: it cannot be written.
    """
    try:
        replace_file(path, text.encode(), mode)
    except OSError as error:
        raise DeployError(f"{path} cannot be written: {error.strerror}") from None


def pool_yaml(pool: PoolConfig, *, hide_secrets: bool = False) -> str:
    """The pool as YAML that `load_yaml(..., PoolConfig)` reads back to an equal one."""
    data = pool.model_dump(mode="json", exclude_none=True)
    for instance in data["instances"]:
        if hide_secrets and "api_key" in instance:
            instance["api_key"] = HIDDEN
    return "# Written by vllm-goodput up.\n" + yaml.safe_dump(data, sort_keys=False)


def dry_run(plan: Plan) -> str:
    """Every command, in a shell's syntax, and the generated pool.yaml."""
    gateway = plan.config.gateway
    specs = [*plan.instances, plan.gateway(gateway, gateway.port)]
    commands = [f"# {spec.name}: {spec.url}, log {spec.log_path}\n{_shell(spec)}" for spec in specs]
    pool = pool_yaml(plan.pool_config(gateway, gateway.port), hide_secrets=True)
    return "\n".join([*commands, f"# {plan.pool_path()}", pool])


def _shell(spec: ProcessSpec) -> str:
    env = [f"{k}={HIDDEN if _is_secret(k) else shlex.quote(v)}" for k, v in spec.env.items()]
    return " ".join([*env, shlex.join(_hide_flags(spec.argv)).replace(f"'{HIDDEN}'", HIDDEN)])


def _hide_flags(argv: tuple[str, ...]) -> list[str]:
    shown: list[str] = []
    for word, before in zip(argv, ("", *argv), strict=False):
        flag, equals, _ = word.partition("=")
        if before.startswith("--") and "=" not in before and _is_secret(before):
            shown.append(HIDDEN)
        elif equals and flag.startswith("--") and _is_secret(flag):
            shown.append(f"{flag}={HIDDEN}")
        else:
            shown.append(word)
    return shown


def _is_secret(name: str) -> bool:
    return not _SECRET_WORDS.isdisjoint(re.split(r"[^a-z]+", name.lower()))
