# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""User-facing configuration: frozen models, and a YAML loader whose errors name the file and the field's path.

Three files: `goodput.yaml` (GoodputConfig, for one `vllm serve --plugin goodput`), `pool.yaml` (PoolConfig, for
`vllm-goodput route`) and `deployment.yaml` (DeploymentConfig, for `vllm-goodput up`). Milliseconds in names ending
in `_ms`, seconds in `_s`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from vllm_goodput.errors import ConfigError
from vllm_goodput.slo import MAX_SLO_MS, SLO

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
Milliseconds = Annotated[Number, Field(gt=0, le=MAX_SLO_MS)]
PositiveInt = Annotated[int, Field(strict=True, gt=0)]
Port = Annotated[int, Field(strict=True, ge=0, le=65535)]
KvTokens = Annotated[PositiveInt, Field(le=2**40)]
BlockSize = Annotated[PositiveInt, Field(le=2**20)]

PolicyName = Literal[
    "goodput",
    "global",
    "just_enough",
    "llumnix",
    "random",
    "round_robin",
    "power_of_two",
    "least_request",
    "least_tokens",
    "weighted_least_request",
    "fastest",
    "shortest_predicted",
    "prefix_affinity",
    "random_reject",
    "round_robin_reject",
    "power_of_two_reject",
    "least_request_reject",
    "least_tokens_reject",
    "weighted_least_request_reject",
    "fastest_reject",
    "shortest_predicted_reject",
    "prefix_affinity_reject",
]


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", value):
        raise ValueError("must be 1 to 64 letters, digits, '_', '.' or '-'")
    return value


def _printable(value: str) -> str:
    if not value or not value.isprintable():
        raise ValueError("must be printable and not empty")
    return value


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # refuses empty and over-long labels
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.path.rstrip("/").endswith("/v1"):
        raise ValueError("must be a base URL such as http://10.0.0.1:8000, without /v1")
    return value.rstrip("/")


def _zmq_endpoint(value: str) -> str:
    scheme, _, rest = value.partition("://")
    host, _, port = rest.rpartition(":")
    tcp = scheme == "tcp" and host not in ("", "*") and port.isdecimal() and 0 < int(port) < 65536
    if not tcp and not (scheme == "ipc" and rest):
        raise ValueError("must be an endpoint such as tcp://10.0.0.1:5557")
    return value


Name = Annotated[str, AfterValidator(_name)]
ZmqEndpoint = Annotated[str, AfterValidator(_zmq_endpoint)]
Url = Annotated[str, AfterValidator(_url)]


class Model(BaseModel):
    """Base of every configuration model: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SLOConfig(Model):
    """Default objectives in milliseconds; a metric left out has none."""

    ttft_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None
    e2el_ms: Milliseconds | None = None

    @property
    def slo(self) -> SLO:
        """The same as an SLO."""
        return SLO(self.ttft_ms, self.tpot_ms, self.e2el_ms)


class EmulateConfig(Model):
    """Pad every engine step to a device profile's time x `scale`."""

    profile: str
    scale: Positive = 1.0


def parse_emulate(text: str) -> EmulateConfig:
    """Parse `NAME[:SCALE]`, e.g. `l40s:4`.

    Raises:
        ConfigError: the scale is not a positive number.
    """
    name, colon, scale = text.partition(":")
    try:
        return EmulateConfig(profile=name, scale=float(scale) if colon else 1.0)
    except ValueError:
        raise ConfigError(
            f"emulate: expected NAME or NAME:SCALE with SCALE a number > 0, got {text!r}"
        ) from None


def _parse_emulate_field(value: Any) -> Any:
    return parse_emulate(value) if isinstance(value, str) else value


Emulate = Annotated[EmulateConfig, BeforeValidator(_parse_emulate_field)]


class GoodputConfig(Model):
    """goodput.yaml: what the plugin does inside one vLLM instance."""

    slo: SLOConfig = SLOConfig()
    emulate: Emulate | None = None


class InstanceConfig(Model):
    """One vLLM instance of a pool."""

    name: Name
    url: Url
    # Concurrency limit of the engine (vLLM's --max-num-seqs); read from the instance when it runs the plugin.
    max_num_seqs: PositiveInt | None = None
    # Its KV cache, tokens, and tokens per block of it (vLLM's --block-size); read from the instance where it tells.
    kv_tokens: KvTokens | None = None
    block_size: BlockSize | None = None
    api_key: Annotated[str, AfterValidator(_printable)] | None = Field(default=None, repr=False)
    # Where it publishes KV events (vLLM's --kv-events-config), and where it repeats them: what it holds in its prefix
    # cache is then known and not guessed.
    kv_events: ZmqEndpoint | None = None
    kv_events_replay: ZmqEndpoint | None = None

    @model_validator(mode="after")
    def _replay_of_events(self) -> InstanceConfig:
        if self.kv_events_replay is not None and self.kv_events is None:
            raise ValueError("kv_events_replay: needs kv_events")
        return self


class HealthConfig(Model):
    """Active health checks of instances."""

    interval_s: Positive = 2.0
    timeout_s: Positive = 5.0
    # While an instance fails its checks, requests that get nothing from it for so long are ended or tried elsewhere.
    stall_s: Positive = 10.0


class ProbeConfig(Model):
    """A few small requests that teach the router a new instance's speed; `enabled: false` sends none."""

    enabled: bool = True
    timeout_s: Positive = 120.0


class TrainingLogConfig(Model):
    """A log of finished requests to train from: features and lengths, no text."""

    path: str
    # Of the file and the rotated one beside it together.
    max_mb: Positive = 256.0


class PredictorConfig(Model):
    """What predicts output lengths."""

    # learned: by a trained model, corrected by every request that finishes; histogram: a running histogram per task;
    # constant: always initial_output_len; max_tokens: the request's max_tokens, the truth where a replayed trace
    # carries it there.
    kind: Literal["learned", "histogram", "constant", "max_tokens"] = "learned"
    # Path of a model file that `vllm-goodput train` made; the package's own model if left out.
    model: str | None = None
    # How often the model file is looked at; a changed one replaces the running model.
    reload_s: Positive = 5.0
    log: TrainingLogConfig | None = None

    @model_validator(mode="after")
    def _learned_only(self) -> PredictorConfig:
        if self.model is not None and self.kind != "learned":
            raise ValueError(f"model: only kind 'learned' has a model, got {self.kind!r}")
        if self.log is not None and self.kind != "learned":
            raise ValueError(f"log: only kind 'learned' looks at what is logged, got {self.kind!r}")
        return self


class PrefixConfig(Model):
    """Prompt tokens that an instance's prefix cache holds count as prefilled; `enabled: false` looks at no prompt."""

    enabled: bool = True


class MigrationConfig(Model):
    """When a running request moves to another instance, with what it has generated."""

    # How often running requests are looked at.
    interval_s: Positive = 0.5
    # A request whose chance of meeting its SLO has fallen below this is endangered ...
    endangered_below: Annotated[Number, Field(ge=0, le=1)] = 0.4
    # ... and moves if that raises its chance by so much, less what the move does to others.
    min_gain: Annotated[Number, Field(gt=0, le=1)] = 0.3
    # Moves of one request at most, and the time between two.
    max_moves: Annotated[int, Field(strict=True, ge=0)] = 2
    cooldown_s: Annotated[Number, Field(ge=0)] = 1.0
    # Time that a move takes besides the target's prefill.
    transfer_s: Annotated[Number, Field(ge=0)] = 0.02


class RouterConfig(Model):
    """Policy and its parameters."""

    policy: PolicyName = "goodput"
    # Fraction added to predicted times before they are held against a deadline.
    margin: Annotated[Number, Field(ge=0, le=1)] = 0.05
    # Quantile of the predicted output length that must fit the deadline.
    length_quantile: Annotated[Number, Field(gt=0, lt=1)] = 0.7
    # Output length assumed for a task before any request of it has finished, tokens.
    initial_output_len: PositiveInt = 256
    # Never predict more output than a request's max_tokens. Off where replayed traces encode true lengths in it.
    use_max_tokens: bool = True
    # Requests held for capacity at once; more are rejected as saturated.
    max_held: Annotated[int, Field(strict=True, ge=0)] = 1000
    predictor: PredictorConfig = PredictorConfig()
    prefix: PrefixConfig = PrefixConfig()
    migration: MigrationConfig = MigrationConfig()
    seed: Annotated[int, Field(strict=True, ge=0)] = 0


def _parse_log_decisions(value: Any) -> Any:
    return "off" if value is False else value  # what YAML makes of off


LogDecisions = Annotated[Literal["off", "rejections", "all"], BeforeValidator(_parse_log_decisions)]


class GatewayConfig(Model):
    """Gateway settings shared by pool.yaml and deployment.yaml."""

    host: str = "127.0.0.1"
    port: Port = 8000
    slo: SLOConfig = SLOConfig()
    router: RouterConfig = RouterConfig()
    health: HealthConfig = HealthConfig()
    probe: ProbeConfig = ProbeConfig()
    max_body_mb: Positive = 64.0
    # Requests open at once; more are answered 429.
    max_open_requests: PositiveInt = 10_000
    connect_timeout_s: Positive = 5.0
    # Which decisions are logged, one line of JSON each.
    log_decisions: LogDecisions = "off"


class PoolConfig(GatewayConfig):
    """pool.yaml: a gateway and the instances behind it."""

    instances: Annotated[tuple[InstanceConfig, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _unique(self) -> PoolConfig:
        _require_unique("instances", "name", [i.name for i in self.instances])
        _require_unique("instances", "url", [i.url for i in self.instances])
        return self


class DeployedInstance(Model):
    """One `vllm serve` process of a deployment."""

    name: Name
    port: Annotated[Port, Field(gt=0)]
    model: str | None = None
    emulate: Emulate | None = None
    # vLLM flags without dashes, e.g. {max-num-seqs: 16, enforce-eager: true}; merged over the deployment's.
    args: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    env: dict[str, str | int | float] = Field(default_factory=dict)


class DeploymentConfig(Model):
    """deployment.yaml: instances and gateway of `vllm-goodput up`, all on this machine."""

    model: str | None = None
    host: str = "127.0.0.1"
    args: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    env: dict[str, str | int | float] = Field(default_factory=dict)
    instances: Annotated[tuple[DeployedInstance, ...], Field(min_length=1)]
    gateway: GatewayConfig = GatewayConfig()
    log_dir: str = "logs"
    start_timeout_s: Positive = 600.0
    stop_timeout_s: Positive = 20.0

    @model_validator(mode="after")
    def _check(self) -> DeploymentConfig:
        _require_unique("instances", "name", [i.name for i in self.instances])
        ports = [i.port for i in self.instances] + [self.gateway.port]
        _require_unique("instances and gateway", "port", [str(p) for p in ports])
        if any(i.name == "gateway" for i in self.instances):
            raise ValueError("instances: the name 'gateway' is reserved")
        for instance in self.instances:
            if instance.model is None and self.model is None:
                raise ValueError(f"instances.{instance.name}.model: required, or set model at top")
        return self


AnyModel = TypeVar("AnyModel", bound=Model)


def load_yaml(path: str | Path, model: type[AnyModel]) -> AnyModel:
    """Read a YAML file into `model`.

    Raises:
        ConfigError: unreadable file, bad YAML, repeated or unknown key, or bad value, each with file and path.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        data = yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of settings, got {type(data).__name__}")
    return validate(data, model, str(path))


def validate(data: Any, model: type[AnyModel], source: str) -> AnyModel:
    """Build `model` from plain data.

    Raises:
        ConfigError: one line per wrong field, each with `source` and the field's path.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        errors = error.errors()
        # A list of which an item is wrong counts as too short as well; only the item's error is true.
        found = [e for e in errors if e["type"] != "too_short" or len(errors) == 1]
        raise ConfigError("\n".join(_describe(source, e) for e in found)) from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _describe(source: str, error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "unknown key"
    elif error["type"] not in ("missing", "value_error") or path:
        message += f" (got {error['input']!r:.80})" if error["type"] != "missing" else ""
    return f"{source}: {path}: {message}" if path else f"{source}: {message}"


def _require_unique(where: str, what: str, values: list[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen and value != "0":
            raise ValueError(f"{where}: {what} {value!r} is used twice")
        seen.add(value)


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, which YAML would silently overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)
