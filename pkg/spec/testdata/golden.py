"""Says what Harbor reads from each task.toml of harbor.txtar, and writes it there.

    pip install harbor==0.25.0; python golden.py harbor.txtar

What it makes of a text is what a trial of Harbor's would use, in the form of
our Spec: times in nanoseconds, what a step does not say taken from the task.
"""

import json
import os
import re
import sys
import warnings

from harbor.models.task.artifacts import source_relative_path, with_convention_entry
from harbor.models.task.config import TaskConfig
from harbor.models.task.verifier_mode import resolve_effective_verifier_env_config
from harbor.utils.env import resolve_env_vars

os.environ["SET"] = "value of SET"
os.environ["EMPTY"] = ""
os.environ.pop("UNSET", None)
warnings.simplefilter("ignore")


def ns(seconds):
    return 0 if seconds is None else int(seconds * 10**9)


def user(*of):
    return next((str(u) for u in of if u is not None), "")


def network(*of):
    for c in of:
        if c is not None and "network_mode" in c.model_fields_set and c.network_mode is not None:
            return {"Mode": c.network_mode.value, "Hosts": c.allowed_hosts or None}
    return {"Mode": "", "Hosts": None}


def healthcheck(h):
    return h and {"Command": h.command, "Interval": ns(h.interval_sec), "Timeout": ns(h.timeout_sec),
                  "StartPeriod": ns(h.start_period_sec), "StartInterval": ns(h.start_interval_sec), "Retries": h.retries}


def environment(e):
    return e and {"BuildTimeout": ns(e.build_timeout_sec), "CPUs": e.cpus or 0, "MemoryMB": e.memory_mb or 0,
                  "StorageMB": e.storage_mb or 0, "Network": network(e), "Env": resolve_env_vars(e.env),
                  "Workdir": e.workdir or "", "Healthcheck": healthcheck(e.healthcheck)}


def artifacts(entries):
    return [{"Source": a.source, "Destination": str(source_relative_path(a.destination or a.source)), "Exclude": a.exclude or None}
            for a in with_convention_entry(entries, convention_source="/logs/artifacts")]


def agent(c, step=None):
    own = step or c
    seconds = own.agent.timeout_sec if own.agent.timeout_sec is not None else c.agent.timeout_sec
    return {"Timeout": ns(seconds), "User": user(own.agent.user, c.agent.user), "Network": network(own.agent, c.agent)}


def verifier(c, step=None):
    own = step or c
    hooks = c.verifier.collect + (step.verifier.collect if step else [])
    return {"Timeout": ns(own.verifier.timeout_sec),
            "Env": {**resolve_env_vars(c.verifier.env), **resolve_env_vars(own.verifier.env)},
            "User": user(own.verifier.user, c.verifier.user), "Network": network(own.verifier, c.verifier),
            "Separate": environment(resolve_effective_verifier_env_config(c, step)),
            "Collect": [{"Command": h.command, "Timeout": ns(h.timeout_sec), "User": user(h.user)} for h in hooks] or None}


def step(c, s):
    least = s.min_reward
    return {"Name": s.name, "Agent": agent(c, s), "Verifier": verifier(c, s), "Healthcheck": healthcheck(s.healthcheck),
            "Artifacts": artifacts([*c.artifacts, *s.artifacts]),
            "MinReward": least if least is None or isinstance(least, dict) else {"reward": least}}


def spec(text):
    c = TaskConfig.model_validate_toml(text)
    return {"Title": c.task.name if c.task else "", "Agent": agent(c), "Verifier": verifier(c),
            "SolutionEnv": resolve_env_vars(c.solution.env), "Environment": environment(c.environment),
            "Artifacts": artifacts(c.artifacts), "Steps": [step(c, s) for s in c.steps or []] or None,
            "StepReward": c.multi_step_reward_strategy.value if c.multi_step_reward_strategy else "mean"}


def main(path):
    head, *rest = re.split(r"^-- (\S+) --\n", open(path).read(), flags=re.M)
    out = head
    for name, text in zip(rest[::2], rest[1::2]):
        if not name.endswith(".toml"):
            continue
        try:
            said = json.dumps(spec(text), indent=1, ensure_ascii=False)
        except ValueError as e:
            said = "refused: " + "; ".join(str(e).split("\n")[:3])
        out += f"-- {name} --\n{text}-- {name.removesuffix('.toml')}.json --\n{said}\n"
    open(path, "w").write(out)


main(sys.argv[1])
