"""Harbor's own models over a job folder:

    models.py read DIR     loads what is in DIR, counts it as Harbor would, and compares
    models.py write DIR    writes a job folder as Harbor does
"""
import json
import math
import sys
from datetime import datetime, timezone
from pathlib import Path

from harbor.metrics.mean import Mean
from harbor.models.agent.context import AgentContext
from harbor.models.job.config import JobConfig
from harbor.models.job.result import JobResult, JobStats
from harbor.models.task.id import LocalTaskId
from harbor.models.trajectories import Trajectory
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import (AgentInfo, ExceptionInfo, ModelInfo, StepResult, TimingInfo, TrialResult)
from harbor.models.verifier.result import VerifierResult
from harbor.utils.pass_at_k import compute_pass_at_k_by_evals


def read(top: Path) -> None:
    JobConfig.model_validate_json((top / "config.json").read_text())
    ours = JobResult.model_validate_json((top / "result.json").read_text())
    trials, trajectories = [], 0
    for path in sorted(top.iterdir()):
        if not path.is_dir() or path.name.startswith("."):
            continue
        config = TrialConfig.model_validate_json((path / "config.json").read_text())
        trial = TrialResult.model_validate_json((path / "result.json").read_text())
        assert trial.config == config and trial.trial_name == config.trial_name == path.name, path
        assert trial.task_id.path == config.task.path, path
        said = json.loads((path / "result.json").read_text())
        assert trial.reward_valid == (said["reward"] is not None), path
        again = json.loads(trial.model_dump_json())
        for key, value in again.items():  # what Harbor knows, it reads as it is written
            if key in said and key not in ("config",) and not key.endswith("_at") and not isinstance(value, (dict, list)):
                assert said[key] == value, (path, key, said[key], value)
        trials.append(trial)
        trajectories += agent(path, trial)
    theirs = JobStats.from_trial_results(trials, n_total_trials=len(trials))
    rewards = {}
    for t in trials:
        key = JobStats.format_agent_evals_key(t.agent_info.name, t.agent_info.model_info.name if t.agent_info.model_info else None, t.source or "adhoc")
        if t.reward_valid:
            rewards.setdefault(key, []).append(t.verifier_result.rewards)
    at = compute_pass_at_k_by_evals(trials)
    assert set(ours.stats.evals) == set(theirs.evals), (set(ours.stats.evals), set(theirs.evals))
    for key, mine in ours.stats.evals.items():
        other = theirs.evals[key]
        assert (mine.n_trials, mine.n_errors) == (other.n_trials, other.n_errors), key
        assert {k: dict(v) for k, v in mine.reward_stats.items()} == {k: dict(v) for k, v in other.reward_stats.items()}, key
        assert dict(mine.exception_stats) == dict(other.exception_stats), key
        near(mine.pass_at_k, at.get(key, {}), key)
        near(mine.metrics[0] if mine.metrics else {}, Mean().compute(rewards[key]) if key in rewards else {}, key)
    for name in ("n_completed_trials", "n_errored_trials", "n_running_trials", "n_pending_trials", "n_input_tokens", "n_cache_tokens", "n_output_tokens"):
        assert getattr(ours.stats, name) == getattr(theirs, name), (name, getattr(ours.stats, name), getattr(theirs, name))
    assert ours.n_total_trials == len(trials)
    print("ok", len(trials), sum(len(e.pass_at_k) for e in ours.stats.evals.values()), trajectories)


def agent(top: Path, trial: TrialResult) -> int:
    """Compares what a trial's result says of a model with its trajectories; how many there are."""
    found = 0
    for part, used in [(top, trial.agent_result)] + [(top / "steps" / s.step_name, s.agent_result) for s in trial.step_results or []]:
        path = part / "agent" / "trajectory.json"
        if not path.exists():
            continue
        found += 1
        atif = Trajectory.model_validate_json(path.read_text())
        total = atif.final_metrics
        assert atif.steps[0].source == "user", path
        assert total.total_steps == len(atif.steps), path
        assert (total.total_prompt_tokens, total.total_cached_tokens, total.total_completion_tokens) == (used.n_input_tokens, used.n_cache_tokens, used.n_output_tokens), path
        calls = [s for t in [atif, *(atif.subagent_trajectories or [])] for s in t.steps if s.source == "agent"]
        details = used.rollout_details or []
        ids = sorted(turn for d in details for turn in d["completion_token_ids"])
        assert ids == sorted(s.metrics.completion_token_ids or [] for s in calls), path
        for d in details:
            assert [len(turn) for turn in d["completion_token_ids"]] == [len(turn) for turn in d["logprobs"]], path
            assert len(d["prompt_token_ids"]) == len(d["logprobs"]), path
    return found


def near(a: dict, b: dict, where: str) -> None:
    assert a.keys() == b.keys() and all(math.isclose(a[k], b[k], abs_tol=1e-9) for k in a), (where, a, b)


def write(top: Path) -> None:
    at = datetime(2026, 1, 31, 18, 0, 0, 250000, tzinfo=timezone.utc)
    naive = datetime(2026, 1, 31, 19, 0, 0, 250000)
    span = TimingInfo(started_at=at, finished_at=at)

    def exception(kind: str) -> ExceptionInfo:
        return ExceptionInfo(exception_type=kind, exception_message="first line\nsecond", exception_traceback="Traceback", occurred_at=naive)

    one = VerifierResult(rewards={"reward": 1})
    (top / "config.json").write_text(JobConfig(job_name=top.name).model_dump_json(indent=4))
    for name, more in {
        "solved": dict(verifier_result=one),
        "two-rewards": dict(verifier_result=VerifierResult(rewards={"a": 0.5, "b": 1})),
        "timed-out": dict(verifier_result=VerifierResult(rewards={"reward": 0.0}), exception_info=exception("AgentTimeoutError")),
        "no-reward": dict(exception_info=exception("RewardFileNotFoundError")),
        "environment": dict(exception_info=exception("EnvironmentStartTimeoutError")),
        "context": dict(exception_info=exception("ContextLengthExceededError")),
        "strange": dict(verifier_result=one, exception_info=exception("RuntimeError")),
        "steps": dict(verifier_result=one, step_results=[StepResult(step_name="s", verifier_result=one, agent_execution=span), StepResult(step_name="t", exception_info=exception("VerifierTimeoutError"))]),
    }.items():
        task = TaskConfig(path=Path("/data/set") / name, source="set")
        trial_name = name + "__abcdefg"
        config = TrialConfig(task=task, trial_name=trial_name, trials_dir=top, agent=AgentConfig(name="terminus-2", model_name="hosted_vllm/m"))
        result = TrialResult(
            task_name=name, trial_name=trial_name, trial_uri="file://" + str(top / trial_name), task_id=LocalTaskId(path=task.path), source="set",
            task_checksum="0" * 64, config=config, agent_info=AgentInfo(name="terminus-2", version="2.0.0", model_info=ModelInfo(name="m", provider="hosted_vllm")),
            agent_result=AgentContext(n_input_tokens=10, n_output_tokens=2), started_at=at, finished_at=at, environment_setup=span, **more)
        (top / trial_name).mkdir()
        (top / trial_name / "config.json").write_text(config.model_dump_json(indent=4))
        (top / trial_name / "result.json").write_text(result.model_dump_json(indent=4))
    (top / "running__abcdefg").mkdir()
    (top / "running__abcdefg" / "config.json").write_text(config.model_dump_json(indent=4))


{"read": read, "write": write}[sys.argv[1]](Path(sys.argv[2]))
