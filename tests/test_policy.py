"""Policies: packing, files, sharding, the active policy."""

import json
import struct

import pytest
import torch
from helpers import assert_same, make_cache
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import kvp_ext
from kvp_ext import _C, packing
from python_ref.agents import PaperAgent
from python_ref.fold import folded_tensor_shapes

ARCHITECTURES = ["small", "paper"]


def random(architecture: str = "small", **kwargs: int) -> kvp_ext.Policy:
    geometry = {"layers": 2, "kv_heads": 3, "head_dim": 10, "head_dim_v": 6, "max_position": 40}
    return kvp_ext.Policy.random(architecture=architecture, **(geometry | kwargs))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_unpack_of_pack_is_exact(architecture):
    folded = random(architecture).folded
    shape = packing.shape_of(folded)
    tensors = packing.unpack(shape, packing.pack(folded))
    assert list(tensors) == list(folded.tensors)
    for name, tensor in folded.tensors.items():
        assert_same(tensors[name], tensor)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("Dk", "Dv", "hidden"), [(10, 6, 64), (64, 128, 33), (1, 1, 1)])
def test_libkvp_and_the_reference_agree_on_the_tensors(architecture, Dk, Dv, hidden):
    paper = architecture == "paper"
    shape = _C.PolicyShape(
        layers=1,
        kv_heads=1,
        head_dim_k=Dk,
        head_dim_v=Dv,
        hidden=hidden,
        position_dim=8,
        position_rows=5,
        flags=(_C.POLICY_GAINS | _C.POLICY_NORMS) if paper else 0,
        norm_eps=1e-5,
    )
    ours = folded_tensor_shapes(Dk, Dv, hidden, 8, gains=paper, norms=paper)
    theirs = {n: (r, c) if c else (r,) for n, r, c in _C.policy_tensors(shape)}
    assert list(ours.items()) == list(theirs.items())


def test_unpack_refuses_another_geometry():
    small, paper = random().folded, random("paper").folded
    with pytest.raises(ValueError, match="packed is"):
        packing.unpack(packing.shape_of(paper), packing.pack(small))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_save_and_load(tmp_path, architecture):
    policy = kvp_ext.Policy(
        random(architecture).folded, sinks=2, recent=9, name="mine", provenance={"steps": 350}
    )
    policy.save(tmp_path / "p.safetensors")
    loaded = kvp_ext.load_policy(tmp_path / "p.safetensors")
    assert (loaded.sinks, loaded.recent, loaded.name) == (2, 9, "mine")
    assert loaded.provenance == {"steps": 350}
    assert (loaded.layers, loaded.kv_heads, loaded.head_dim_k, loaded.head_dim_v) == (2, 3, 10, 6)
    assert (loaded.architecture, loaded.max_position) == (architecture, 40)
    for name, tensor in policy.folded.tensors.items():
        assert_same(loaded.folded.tensors[name], tensor)
    assert_same(loaded.folded.positions, policy.folded.positions)
    assert [p.name for p in tmp_path.iterdir()] == ["p.safetensors"]


def _saved(tmp_path):
    path = tmp_path / "p.safetensors"
    random().save(path)
    return path


def _rewrite(path, *, metadata=None, header=None):
    """The file with another metadata or raw header, its data unchanged."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    parsed = json.loads(raw[8 : 8 + size])
    if metadata:
        metadata(parsed["__metadata__"])
    if header:
        header(parsed)
    text = json.dumps(parsed).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])


def _geometry(**changes):
    def change(metadata):
        metadata["geometry"] = json.dumps(json.loads(metadata["geometry"]) | changes)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(format="other"), "format is 'other'"),
        (lambda m: m.pop("format"), "format is None"),
        (lambda m: m.update(format_version="99"), "format_version is '99'"),
        (lambda m: m.pop("geometry"), "geometry"),
        (lambda m: m.update(geometry="{"), "geometry"),
        (lambda m: m.update(geometry="[]"), "geometry"),
        (_geometry(layers=3), "input.weight"),
        (_geometry(layers=True), "geometry.layers is True"),
        (_geometry(hidden=10**9), "expected F32"),
        (_geometry(position_rows=2**31 - 1), "positions"),
        (_geometry(position_rows=2**40), "geometry.position_rows"),
        (_geometry(gains=True), "missing tensors"),
        (_geometry(norm_eps="0"), "norm_eps"),
        (lambda m: m.update(pins='{"sinks": -1, "recent": 2}'), "pins.sinks is -1"),
    ],
)
def test_a_file_that_lies_is_refused(tmp_path, change, words):
    path = _saved(tmp_path)
    _rewrite(path, metadata=change)
    with pytest.raises(ValueError, match=words) as caught:
        kvp_ext.load_policy(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 0.5, 0.999])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = _saved(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match="malformed or cut short"):
        kvp_ext.load_policy(path)


def test_a_header_that_claims_terabytes_allocates_nothing(tmp_path):
    path = _saved(tmp_path)
    path.write_bytes(struct.pack("<Q", 2**60) + path.read_bytes()[8:])
    with pytest.raises(ValueError, match="malformed"):
        kvp_ext.load_policy(path)

    def claim(header):
        header["input.weight"]["shape"] = [2, 3, 2**20, 2**20]

    path = _saved(tmp_path)
    _rewrite(path, header=claim)
    with pytest.raises(ValueError, match="malformed|input.weight"):
        kvp_ext.load_policy(path)


def test_other_files_and_values_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="format is None"):
        kvp_ext.load_policy(path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        kvp_ext.load_policy(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="not shipped"):
        kvp_ext.load_policy("no-such-policy")
    saved = _saved(tmp_path)
    tensors = load_file(saved)
    tensors["output.bias"][0, 0] = torch.nan
    with safe_open(saved, framework="pt") as file:
        metadata = file.metadata()
    save_file(tensors, saved, metadata=metadata)
    with pytest.raises(ValueError, match="output.bias holds NaN"):
        kvp_ext.load_policy(saved)


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = _saved(tmp_path)
    before = path.read_bytes()
    policy = random()
    policy.provenance["unserialisable"] = object()
    with pytest.raises(TypeError):
        policy.save(path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_shards_score_like_their_heads(architecture):
    policy = random(architecture, kv_heads=4)
    cache = make_cache(L=2, B=1, H=4, T=9, D=10, Dv=6)
    whole = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy)
    for rank in range(2):
        heads = slice(2 * rank, 2 * rank + 2)
        part = policy.shard(rank, 2)
        assert part.kv_heads == 2
        scores = kvp_ext.score(cache.k[:, :, heads], cache.v[:, :, heads], cache.pos, policy=part)
        assert_same(scores, whole[:, :, heads])
    replicated = [policy.shard(rank, 8).folded.tensors["input.bias"] for rank in range(8)]
    assert_same(replicated[4], replicated[5])
    assert_same(replicated[4], policy.folded.tensors["input.bias"][:, 2:3])
    for rank, world in [(0, 3), (2, 2), (-1, 2), (0, 0)]:
        with pytest.raises(ValueError, match="rank is|world is"):
            policy.shard(rank, world)


def test_equal_seeds_give_equal_policies():
    one, two, other = random(seed=1), random(seed=1), random(seed=2)
    assert_same(one.packed(), two.packed())
    assert not torch.equal(one.packed(), other.packed())
    with pytest.raises(ValueError, match="architecture"):
        random("large")
    with pytest.raises(ValueError, match="layers is 0"):
        random(layers=0)


def test_use_sets_and_restores_the_active_policy():
    cache = make_cache(L=2, B=1, H=3, T=40, D=10, Dv=6)
    policy = random()
    with kvp_ext.use(policy):
        assert kvp_ext.active_policy() is policy
        with kvp_ext.use(random(seed=5)):
            assert kvp_ext.active_policy() is not policy
        assert kvp_ext.evict_(cache.k, cache.v, cache.pos, 30).evicted
    with pytest.raises(RuntimeError, match="no policy"):
        kvp_ext.active_policy()


def test_from_released_agents_scores_the_same():
    agent = PaperAgent(1, 2, 8, 8, position_rows=20, generator=torch.Generator().manual_seed(0))
    names = PaperAgent.RELEASED_KEYS
    released = [[{names[n]: p[0, h] for n, p in agent.state_dict().items()} for h in range(2)]]
    policy = kvp_ext.Policy.from_agent(PaperAgent.from_released(released))
    cache = make_cache(L=1, B=1, H=2, T=17)
    with torch.no_grad():
        want = agent(cache.k, cache.v, cache.pos)
    got = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy)
    assert_same(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", kvp_ext.policies())
def test_shipped_policies(name):
    policy = kvp_ext.load_policy(name)
    assert policy.name == name
    assert policy.provenance
    cache = make_cache(
        L=policy.layers, B=1, H=policy.kv_heads, T=5, D=policy.head_dim_k, Dv=policy.head_dim_v
    )
    assert bool(kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy).isfinite().all())
