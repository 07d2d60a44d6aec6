/* kvp.h - the C ABI of libkvp: learned eviction of KV-cache entries.
 *
 * One call scores the cached entries of every (layer, KV head, sequence) with a small policy,
 * selects the ones to keep and compacts K, V and positions in place. The library knows no
 * framework and allocates nothing proportional to the cache: the caller passes pointers,
 * strides and a workspace.
 *
 * Terms: a *row* is one (layer, sequence, KV head) with T *slots*; an *entry* is the K, V,
 * position (and score) in one slot. An entry is *valid* when its position is >= 0 and fewer than
 * `lengths` entries of its row that precede it are valid; everything else is padding, which is
 * never scored and never kept. So right padding, left padding and padding between turns are all
 * expressed through positions and lengths.
 *
 * Every stride is an int64 in elements. Every struct that may grow begins with, or is passed
 * beside, its size, so a program compiled against an older header keeps working.
 */
#ifndef KVP_KVP_H
#define KVP_KVP_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define KVP_API __declspec(dllexport)
#else
#define KVP_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_VERSION_MAJOR 0
#define KVP_VERSION_MINOR 1

/* Version of the packed weight layout that this library reads; see kvp_policy_pack. */
#define KVP_PACKED_LAYOUT_VERSION 1

typedef enum kvp_status {
  KVP_OK = 0,
  KVP_INVALID_ARGUMENT = 1, /* a value is out of its documented range or shapes do not fit */
  KVP_UNSUPPORTED = 2,      /* valid, but not provided by this build, device or version */
  KVP_INTERNAL = 3          /* a defect in libkvp or in the system below it */
} kvp_status;

typedef enum kvp_dtype {
  KVP_FLOAT32 = 0,
  KVP_FLOAT16 = 1,
  KVP_BFLOAT16 = 2,
  KVP_INT32 = 16,
  KVP_INT64 = 17
} kvp_dtype;

typedef enum kvp_device {
  KVP_CPU = 0,
  KVP_CUDA = 1, /* compute capability 8.0 or newer */
  KVP_SIMT = 2  /* the CUDA kernels run on the host, for tests; in builds with KVP_SIMT=ON */
} kvp_device;

/* How kvp_layer finds the slot of an entry. Paged caches will add a value and fields. */
typedef enum kvp_addressing { KVP_DENSE = 0 } kvp_addressing;

/* What a budget counts. */
typedef enum kvp_mode {
  KVP_PER_HEAD = 0, /* entries kept in each row */
  KVP_UNION = 1,    /* entries kept in each (layer, sequence); all its heads keep the same slots */
  KVP_MODEL = 2     /* entries kept in each sequence, over all its layers and heads */
} kvp_mode;

/* Order of the survivors in their row. */
typedef enum kvp_order {
  KVP_STABLE = 0, /* ascending slot order, as before */
  KVP_ANY = 1     /* fewest moves: kept entries below the new length stay where they are */
} kvp_order;

/* A strided view of one layer: [batch, head, slot, channel]. data == NULL means absent. */
typedef struct kvp_view {
  void* data;
  int64_t stride_batch;
  int64_t stride_head;
  int64_t stride_slot;
  int64_t stride_channel; /* 1 for K and V; unused for positions and scores */
} kvp_view;

/* One layer of the cache. A layer whose k.data is NULL (for kvp_select, which reads no K: whose
 * scores.data is NULL) is skipped and stays as it is; its new_lengths are 0. */
typedef struct kvp_layer {
  int64_t slots;   /* T: capacity of each row */
  kvp_view k;      /* [B, H, T, head_dim_k], dtype */
  kvp_view v;      /* [B, H, T, head_dim_v], dtype */
  kvp_view pos;    /* [B, H, T], pos_dtype. A stride of 0 over batch or head shares positions; they
                      are then read but not compacted, and new_pos carries the survivors'. */
  kvp_view scores; /* [B, H, T] float32, optional. A NaN marks an entry without a score. */
} kvp_layer;

/* int32 counts per row, read through strides (0 = shared). data == NULL: use `value`. */
typedef struct kvp_counts {
  const int32_t* data;
  int64_t stride_layer;
  int64_t stride_batch;
  int64_t stride_head;
  int64_t value;
} kvp_counts;

/* ---- policy ------------------------------------------------------------------------------ */

/* A policy in the folded form that kernels evaluate. With k, v the entry's key and value, and
 * p = position_features[min(pos, position_rows - 1)]:
 *
 *   gain_k = KVP_POLICY_GAINS ? 1 / sqrt(|Gk k + gk|^2 + ck) : 1        (likewise gain_v)
 *   z1     = W1 [gain_k k; gain_v v; p] + gain_k bk + gain_v bv + b1
 *   h1     = silu(norm1(z1)),   h2 = silu(norm2(W2 h1 + b2)),   score = w3 . h2 + b3
 *   norm(z) = KVP_POLICY_NORMS ? z / sqrt(mean(z^2) + eps) * weight + bias : z
 *
 * LayerNorm's centring and affine map of the k and v branches, the first branch matrices and
 * the input standardisation are folded into these matrices (python_ref/fold.py derives it). */
enum { KVP_POLICY_GAINS = 1, KVP_POLICY_NORMS = 2, KVP_POLICY_SHARED_POSITIONS = 4 };

typedef struct kvp_policy_shape {
  int32_t layers;
  int32_t kv_heads;
  int32_t head_dim_k;
  int32_t head_dim_v;
  int32_t hidden;        /* width of both hidden layers */
  int32_t position_dim;  /* features per position */
  int32_t position_rows; /* longest trained position + 1 */
  uint32_t flags;        /* KVP_POLICY_* */
  float norm_eps;
} kvp_policy_shape;

typedef struct kvp_policy {
  size_t struct_size; /* sizeof(kvp_policy) */
  kvp_policy_shape shape;
  int32_t dtype;       /* of the form below: KVP_FLOAT32 on the CPU; on CUDA KVP_FLOAT16 for caches
                          of that dtype and KVP_BFLOAT16 for all others */
  const void* weights; /* [layers][kv_heads] blocks, 64-byte aligned: kvp_policy_pack's, or
                          kvp_policy_fragments' */
  const void* positions; /* [position_rows][position_dim] float32, or the rows of
                            kvp_policy_position_fragments, 16-byte aligned; one such table per
                            (layer, head) without KVP_POLICY_SHARED_POSITIONS */
} kvp_policy;

/* One named weight tensor of a (layer, head) in its unpacked, row-major form. */
typedef struct kvp_policy_tensor {
  const char* name;
  int32_t rows; /* outputs of a matrix, or length of a vector (1 for a scalar) */
  int32_t cols; /* inputs of a matrix; 0 for a vector */
} kvp_policy_tensor;

/* Lists the weight tensors of one (layer, head), in the order kvp_policy_pack takes them.
 * `tensors` may be NULL to ask for the count only. */
KVP_API kvp_status kvp_policy_tensors(const kvp_policy_shape* shape, kvp_policy_tensor* tensors,
                                      int32_t capacity, int32_t* count);

/* Floats in the packed block of one (layer, head). */
KVP_API kvp_status kvp_policy_block_floats(const kvp_policy_shape* shape, int64_t* floats);

/* Packs one (layer, head): tensors[i] is the row-major data of the i-th tensor listed. */
KVP_API kvp_status kvp_policy_pack(const kvp_policy_shape* shape, const float* const* tensors,
                                   float* block);

/* The exact inverse of kvp_policy_pack. */
KVP_API kvp_status kvp_policy_unpack(const kvp_policy_shape* shape, const float* block,
                                     float* const* tensors);

/* Tensor cores read a policy as 16-bit fragments, in blocks of as many bytes per (layer, head), and
 * in rows of as many bytes per position. KVP_UNSUPPORTED for widths that no kernel exists for. */
KVP_API kvp_status kvp_policy_fragment_bytes(const kvp_policy_shape* shape, int64_t* block_bytes,
                                             int64_t* position_row_bytes);

/* Rounds one packed (layer, head) to KVP_FLOAT16 or KVP_BFLOAT16 fragments. All pointers are to
 * host memory; the caller copies the result to the device. */
KVP_API kvp_status kvp_policy_fragments(const kvp_policy_shape* shape, int32_t dtype,
                                        const float* block, void* fragments);

/* Rounds `rows` rows of position features likewise. */
KVP_API kvp_status kvp_policy_position_fragments(const kvp_policy_shape* shape, int32_t dtype,
                                                 const float* positions, int64_t rows,
                                                 void* fragments);

/* ---- eviction ---------------------------------------------------------------------------- */

/* Arguments of every operation below; each says which it uses. */
typedef struct kvp_args {
  size_t struct_size; /* sizeof(kvp_args) */
  size_t layer_size;  /* sizeof(kvp_layer): the distance between two elements of `layers` */

  int32_t device; /* kvp_device; every pointer lives there unless said otherwise. On CUDA the
                     operation is enqueued on `stream` of the current device: nothing is allocated,
                     nothing waits, and it may be captured in a graph */
  int32_t addressing;
  void* stream;    /* cudaStream_t; NULL is the default stream */
  int32_t threads; /* CPU threads to use, at least 1 */

  int32_t dtype;     /* of K and V */
  int32_t pos_dtype; /* KVP_INT32 or KVP_INT64; of every pos and of new_pos */
  int32_t n_layers;
  int32_t n_batch;
  int32_t n_heads;
  int32_t head_dim_k;
  int32_t head_dim_v;
  const kvp_layer* layers; /* host array of n_layers */

  kvp_counts lengths; /* valid entries per row; <= 0 is an empty row. data NULL and value < 0:
                         every entry with a position >= 0 is valid */
  kvp_counts budget;  /* see kvp_mode. UNION ignores stride_head, MODEL also stride_layer */
  int32_t mode;
  int32_t order;
  int32_t sinks;  /* leading valid entries always kept, inside the budget */
  int32_t recent; /* trailing valid entries always kept, inside the budget; shrinks first */

  const kvp_policy* policy; /* NULL: `scores` stand as they are */

  /* Results, dense row-major. capacity is their slot count N; rows shorter than N are filled
   * with -1. */
  int32_t* new_lengths; /* [L, B, H] */
  void* new_pos;        /* [L, B, H, N] pos_dtype, optional */
  int32_t* kept;        /* [L, B, H, N] slots in survivor order, optional (required by select) */
  int64_t capacity;
  int32_t* changed; /* one int32: 1 if any row was changed, else 0; optional */

  void* workspace;
  size_t workspace_bytes;
} kvp_args;

typedef enum kvp_op {
  KVP_OP_SCORE = 0,
  KVP_OP_SELECT = 1,
  KVP_OP_COMPACT = 2,
  KVP_OP_EVICT = 3
} kvp_op;

/* Bytes of workspace that the operation needs for these arguments. */
KVP_API kvp_status kvp_workspace_bytes(kvp_op op, const kvp_args* args, size_t* bytes);

/* Checks everything that the operation would check, except the workspace and whether this build has
 * the device. Writes nothing; reads the structs and, in host memory, lengths, budget, positions
 * (MODEL counts the rows that hold an entry) and what kvp_compact reads. What lies in device memory
 * cannot be checked without waiting for it; there lengths are cut to the slots, a row that holds an
 * entry keeps at least one, and results end at `capacity`. */
KVP_API kvp_status kvp_validate(kvp_op op, const kvp_args* args);

/* Writes the score of every valid entry into layers[].scores; padding gets NaN.
 * Uses k, v, pos, scores, lengths, policy. */
KVP_API kvp_status kvp_score(const kvp_args* args);

/* Selects the entries to keep from layers[].scores into kept and new_lengths.
 * Uses pos (optional: without it slots [0, lengths) are valid), scores, lengths, budget, mode,
 * order, sinks, recent. Of two entries the one with the higher score is kept, then the one in the
 * lower slot (in MODEL mode: of the lower layer, head, slot); NaN ranks below -inf; +0 equals -0.
 * UNION ranks an entry by its best rank in any head; the heads must have the same padding. A row
 * that holds an entry keeps at least one. */
KVP_API kvp_status kvp_select(const kvp_args* args);

/* Moves the entries listed in kept (read, with new_lengths as counts) to the front of their row:
 * K, V, scores and per-head positions in place, positions also to new_pos. With KVP_STABLE kept
 * must ascend within a row. Slots past the new length become padding: K and V keep finite stale
 * bytes, per-head positions become -1, scores NaN. */
KVP_API kvp_status kvp_compact(const kvp_args* args);

/* score (entries without a score only), select and compact in one call. Where all entries are kept
 * no score is needed and none is computed; a row whose entries neither leave nor move is
 * untouched. */
KVP_API kvp_status kvp_evict(const kvp_args* args);

/* Message of this thread's last failed call: which argument, what it was, what was expected. */
KVP_API const char* kvp_last_error(void);

/* Devices that this build has kernels for, as a comma-separated list of "cpu", "cuda", "simt".
 * Whether the machine has such a device is another question. */
KVP_API const char* kvp_devices(void);

/* Instruction sets that the CPU backend was built with and this machine can run, best first, as
 * a comma-separated list of "v4", "v3", "baseline". */
KVP_API const char* kvp_cpu_isas(void);

/* Restricts the CPU backend to one of kvp_cpu_isas(); NULL returns to the best. For tests. */
KVP_API kvp_status kvp_cpu_use_isa(const char* isa);

#ifdef __cplusplus
}
#endif
#endif /* KVP_KVP_H */
