"""Language models, two layers deep, in each framework that has them: what a step computes, and what is refused."""

import numpy as np
import pytest

from bench import frameworks
from bench.timing import check, measure
from tests.conftest import TESTED
from tests.frameworks.sessions import describe_llm, open_llm
from tests.frameworks.torch_reference import TINY_DECODERS

FRAMEWORK = frameworks.load(TESTED)
if "llm" not in FRAMEWORK.BUILDERS:
    pytest.skip("it has no language models", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("tiny_decoders")
LORA = {"LORA_RANK": "4"}


def train(**environ):
    return open_llm("training", MODEL="tiny-qwen", **environ)


def copy_weights(session):
    """Return {name: copy in NumPy} of all weights."""
    if TESTED == "torch":
        weights = {name: each.detach() for name, each in session.model.module.named_parameters()}
    else:
        from mlx.utils import tree_flatten

        weights = dict(tree_flatten(session.model.module.parameters()))
    return {name: np.array(session.context.as_array(each)) for name, each in weights.items()}


def assert_last_result_is_that_of(session, other, tokens):
    """Compare with the logits of all tokens at once, in an empty cache of another session with equal weights."""
    other.model.open_cache(*tokens.shape)
    expected = other.context.as_array(other.model.extend_uncompiled(*other.context.put(tokens)))
    assert check.relative_error(session.context.as_array(session.last_result), expected) < 1e-4


@pytest.mark.parametrize("model", TINY_DECODERS)
@pytest.mark.parametrize(("depth", "tokens"), [(3, 4), (0, 1)])
def test_steps_of_decode_are_the_model_itself_and_start_again_after_depth(model, depth, tokens):
    environ = {"MODEL": model, "DEPTH": str(depth), "NEW_TOKENS": str(tokens)}
    session, other = open_llm("decode", **environ), open_llm("decode", **environ)
    batches = [ids for (ids,) in describe_llm("decode", **environ).make_batches(2, 0)]
    for turn in range(9):  # two rounds over all batches, and one more
        # The prompt in the cache is the first batch's.
        read = np.concatenate([batches[0][:, :depth], batches[turn % 4][:, depth:]], 1)
        for place in range(depth, depth + tokens):
            session.step()
            assert_last_result_is_that_of(session, other, read[:, : place + 1])


@pytest.mark.parametrize("model", TINY_DECODERS)
def test_a_step_of_prefill_is_the_model_itself(model):
    session, other = open_llm("prefill", MODEL=model), open_llm("prefill", MODEL=model)
    batches = [ids for (ids,) in describe_llm("prefill", MODEL=model).make_batches(2, 0)]
    assert batches[0].shape == (2, 6)
    for turn in range(6):
        session.step()
        assert session.last_result.shape == (2, 500)
        assert_last_result_is_that_of(session, other, batches[turn % 4])


@pytest.mark.parametrize(("phase", "precision"), [("prefill", "float32"), ("decode", "bfloat16")])
def test_a_session_is_measured(phase, precision):
    session = open_llm(phase, PRECISION=precision, NEW_TOKENS="1")
    assert session.measured_precision == precision
    measured = measure.measure(measure.Job(session, 2, max_seconds=0.1))
    assert not {"recompiled", "not_finite"} & set(measured.flags)
    session.check_last_step()
    session.close()


# Training

SLOW_TO_COMPILE = TESTED == "torch"


@pytest.mark.parametrize(
    "environ",
    [
        *({}, LORA, {"PRECISION": "bfloat16"}, LORA | {"CHECKPOINTING": "1"}),
        *([] if SLOW_TO_COMPILE else [{"COMPILE": "1"}, LORA | {"CHECKPOINTING": "1", "COMPILE": "1"}]),
    ],
)
def test_training_is_measured_and_its_loss_falls(environ):
    session = train(**environ)
    measured = measure.measure(measure.Job(session, 12, max_seconds=0.1))
    assert not {"recompiled", "not_finite"} & set(measured.flags)
    session.check_last_step()
    batch, losses = next(session.batches), []
    for _ in range(20):
        session.model.train(*batch)
        losses.append(float(session.model.loss))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("model", TINY_DECODERS)
@pytest.mark.parametrize("rank", [0, 4])
def test_a_step_trains_all_weights_or_only_the_adapters_of_attention(model, rank):
    session, workload = (f("training", MODEL=model, LORA_RANK=str(rank)) for f in (open_llm, describe_llm))
    before = copy_weights(session)
    session.step()
    changed = {name for name, weight in copy_weights(session).items() if not np.array_equal(weight, before[name])}
    assert changed == {name for name in before if not rank or name.rpartition(".")[2] in ("a", "b")}
    assert session.parameters == workload.parameters == sum(before[name].size for name in changed)
    assert len(session.checksum()) == len(changed)
    if rank:
        decoder = TINY_DECODERS[model]
        heads, head = decoder.num_heads * decoder.head_dim, decoder.num_kv_heads * decoder.head_dim
        assert workload.parameters == 2 * rank * ((64 + heads) + 2 * (64 + head) + (heads + 64))


@pytest.mark.parametrize("environ", [{}, LORA], ids=["full", "lora"])
def test_a_token_sees_no_later_one_and_the_loss_is_that_of_the_next(environ):
    session = train(**environ)
    ((ids, target), *_) = describe_llm("training", MODEL="tiny-qwen", **environ).make_batches(2, 0)
    changed = ids.copy()
    changed[:, 3:] = ids[:, :2:-1]
    logits, others = (
        np.array(session.context.as_array(session.model.infer(*session.context.put(each)))) for each in (ids, changed)
    )
    assert check.relative_error(others[:, :3], logits[:, :3]) < 1e-5
    assert check.relative_error(others[:, 3:], logits[:, 3:]) > 0.1
    assert np.array_equal(target[:, :-1], ids[:, 1:])
    session.model.forward(*session.context.put(ids, target))
    likelihoods = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(likelihoods, target[..., None], -1)).mean()
    assert float(session.model.loss) == pytest.approx(expected, rel=1e-3)


def test_checkpointing_computes_each_layer_twice_with_the_same_gradients(monkeypatch):
    found = []
    for checkpointing in "01":
        session, calls = train(CHECKPOINTING=checkpointing), []
        attention = session.model.module.decoder.model.layers[0]
        attention = getattr(attention, "layer", attention).self_attn
        kind = type(attention)
        call = kind.__call__
        with monkeypatch.context() as counted:
            counted.setattr(
                kind, "__call__", lambda *x, call=call, calls=calls, **how: calls.append(1) or call(*x, **how)
            )
            session.model.forward(*next(session.batches))
            session.model.backward()
            gradient = session.context.as_array(session.model.last_gradient)
        found.append((len(calls), gradient))
    (once, plain), (twice, again) = found
    assert (once, twice) == (2, 4)
    assert check.relative_error(again, plain) < 1e-4
