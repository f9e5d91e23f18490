"""Language models, two layers deep, in each framework that has them: what a step computes, and what is refused."""

import numpy as np
import pytest

from bench.precision import relative_error
from bench.settings import LACKS
from tests.conftest import TESTED
from tests.frameworks.sessions import assert_measured, open_llm
from tests.frameworks.torch_reference import TINY_DECODERS, TRAINED_DECODERS

if "llm" in LACKS[TESTED].get("command", ()):
    pytest.skip("it has no language models", allow_module_level=True)


def copy_weights(session):
    """Return {name: copy in NumPy} of all weights."""
    if TESTED == "torch":
        weights = {name: each.detach() for name, each in session.model.module.named_parameters()}
    else:
        from mlx.utils import tree_flatten

        weights = dict(tree_flatten(session.model.module.parameters()))
    return {name: np.array(session.context.to_numpy(each)) for name, each in weights.items()}


@pytest.mark.parametrize(("model", "depth", "tokens"), [*zip(TINY_DECODERS, (3, 3, 0), (4, 4, 1), strict=True)])
def test_steps_of_decode_are_the_model_itself_and_start_again_after_depth(model, depth, tokens):
    environ = {"MODEL": model, "DEPTH": str(depth), "NEW_TOKENS": str(tokens)}
    session, other = open_llm("decode", **environ), open_llm("decode", **environ)
    batches = [ids for (ids,) in session.workload.make_batches(2, 0)]
    for turn in range(5):  # a round over all batches, and one more
        # The prompt in the cache is the first batch's.
        read = np.concatenate([batches[0][:, :depth], batches[turn % 4][:, depth:]], 1)
        for place in range(depth, depth + tokens):
            session.step()
            # The logits of all tokens at once, in an empty cache of another session with equal weights.
            empty, whole = other.context.put(read[:, :0], read[:, : place + 1])
            other.model.open_cache(empty, place + 1)
            expected = other.context.to_numpy(other.model.infer(0, whole))
            assert relative_error(session.context.to_numpy(session.last_result), expected) < 1e-4


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_session_is_measured_in_16_bits(phase):
    session = open_llm(phase, PRECISION="bfloat16")
    assert_measured(session, 2)
    assert session.precisions == {"matmul": "bfloat16"}


@pytest.mark.parametrize("model", TINY_DECODERS)
def test_a_step_of_decode_reads_all_weights_but_unused_experts_and_a_table_that_only_embeds(model):
    session = open_llm("decode", MODEL=model)
    workload = session.workload
    table = 0 if workload.sizes.tie_word_embeddings else workload.sizes.vocab_size * workload.sizes.hidden_size
    unused = 2 * 8 * 3 * 64 * 64 * (3 / 4) ** 2 if model == "tiny-moe" else 0  # two tokens leave out 3/4 of 3/4
    assert session.weight_bytes == 4 * (workload.parameters - table - unused)


@pytest.mark.skipif(TESTED == "torch", reason="only MLX has them")
@pytest.mark.parametrize("model", TRAINED_DECODERS)
@pytest.mark.parametrize("bits", ["8", "6", "5", "4"])
def test_quantised_weights_are_the_same_model(model, bits):
    session, full = (open_llm("decode", MODEL=model, PRECISION="bfloat16", WEIGHT_BITS=each) for each in (bits, "full"))
    assert session.parameters == full.parameters == full.workload.parameters
    assert session.weight_bytes < full.weight_bytes * 0.75
    for each in (session, full):
        each.step()
    moved, unmoved = (each.context.to_numpy(each.last_result) for each in (session, full))
    assert 0.001 < relative_error(moved, unmoved) < 0.6  # fewer bits move the output
    assert_measured(session, 2)
    assert "quantised" in str(session.notes)


@pytest.mark.parametrize("environ", [{}, {"PRECISION": "bfloat16"}, {"LORA_RANK": "4"}])
def test_training_is_measured_and_its_loss_falls(environ):
    session = open_llm("training", MODEL="tiny-qwen", **environ)
    batch, losses = next(session.batches)[0], []
    for _ in range(20):
        session.model.train(*batch)
        losses.append(float(session.model.loss))
    assert losses[-1] < losses[0]
    assert_measured(session, 12)


@pytest.mark.parametrize("model", TRAINED_DECODERS)
@pytest.mark.parametrize("rank", [0, 4])
def test_a_step_trains_all_weights_or_only_the_adapters_of_attention(model, rank):
    session = open_llm("training", MODEL=model, LORA_RANK=str(rank))
    before = copy_weights(session)
    session.step()
    changed = {name for name, weight in copy_weights(session).items() if not np.array_equal(weight, before[name])}
    assert changed == {name for name in before if not rank or name.rpartition(".")[2] in ("lora_a", "lora_b")}
    assert session.parameters == session.workload.parameters == sum(before[name].size for name in changed)
    assert rank == 0 or len(list(session.matrices())) == len(changed)


def test_a_token_sees_no_later_one_and_the_loss_is_that_of_the_next():
    session = open_llm("training", MODEL="tiny-qwen")
    ((ids, target), *_) = session.workload.make_batches(2, 0)
    changed = np.concatenate([ids[:, :3], ids[:, :2:-1]], 1)
    logits, others = (session.model.output(*session.context.put(each)) for each in (ids, changed))
    assert relative_error(others[:, :3], logits[:, :3]) < 1e-5
    assert relative_error(others[:, 3:], logits[:, 3:]) > 0.1
    assert np.array_equal(target[:, :-1], ids[:, 1:])
    session.model.train(*session.context.put(ids, target))
    likelihoods = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(likelihoods, target[..., None], -1)).mean()
    assert float(session.model.loss) == pytest.approx(expected, rel=1e-3)
