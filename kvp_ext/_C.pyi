"""libkvp through pybind11. Pointers are ints, strides are in elements."""

FLOAT32: int
FLOAT16: int
BFLOAT16: int
INT32: int
INT64: int
CPU: int
CUDA: int
SIMT: int
DENSE: int
OP_SCORE: int
OP_SELECT: int
OP_COMPACT: int
OP_EVICT: int
PER_HEAD: int
UNION: int
MODEL: int
STABLE: int
ANY: int
POLICY_GAINS: int
POLICY_NORMS: int
POLICY_SHARED_POSITIONS: int
PACKED_LAYOUT_VERSION: int

class PolicyShape:
    layers: int
    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    hidden: int
    position_dim: int
    position_rows: int
    flags: int
    norm_eps: float
    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim_k: int,
        head_dim_v: int,
        hidden: int,
        position_dim: int,
        position_rows: int,
        flags: int,
        norm_eps: float,
    ) -> None: ...

class PolicyView:
    def __init__(
        self, shape: PolicyShape, dtype: int, weights_ptr: int, positions_ptr: int
    ) -> None: ...

_Counts = tuple[int, int, int, int, int]

class Args:
    device: int
    addressing: int
    stream: int
    threads: int
    dtype: int
    pos_dtype: int
    n_layers: int
    n_batch: int
    n_heads: int
    head_dim_k: int
    head_dim_v: int
    lengths: _Counts
    budget: _Counts
    mode: int
    order: int
    sinks: int
    recent: int
    policy: PolicyView | None
    new_lengths: int
    new_pos: int
    kept: int
    capacity: int
    changed: int
    workspace: int
    workspace_bytes: int
    def set_layers(self, flat: list[int]) -> None: ...

def policy_tensors(shape: PolicyShape) -> list[tuple[str, int, int]]: ...
def policy_block_floats(shape: PolicyShape) -> int: ...
def policy_pack(shape: PolicyShape, tensors: list[int], block: int) -> None: ...
def policy_unpack(shape: PolicyShape, block: int, tensors: list[int]) -> None: ...
def policy_fragment_bytes(shape: PolicyShape) -> tuple[int, int]: ...
def policy_fragments(shape: PolicyShape, dtype: int, block: int, fragments: int) -> None: ...
def policy_position_fragments(
    shape: PolicyShape, dtype: int, positions: int, rows: int, fragments: int
) -> None: ...
def validate(op: int, args: Args) -> None: ...
def workspace_bytes(op: int, args: Args) -> int: ...
def score(args: Args) -> None: ...
def select(args: Args) -> None: ...
def compact(args: Args) -> None: ...
def evict(args: Args) -> None: ...
def cpu_isas() -> list[str]: ...
def cpu_use_isa(isa: str | None) -> None: ...
def devices() -> list[str]: ...
