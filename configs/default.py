"""Every field of a two-stage run, with its unit and meaning; the other configs start from here.

    python -m ssa_jax.main --config=configs/default.py --workdir=runs/default --config.stage1.replicas=4

Any field can be given on the command line as --config.FIELD=VALUE.
"""

import ml_collections
from ml_collections import config_dict


def optimizer(**changes) -> ml_collections.ConfigDict:
    """An optimizer with its schedule."""
    fields = dict(
        name="adamw",  # weights: adam, adamw or sgd; architecture: adam or sgd
        b1=0.9,  # decay of the first moment; momentum of sgd
        b2=0.98,  # decay of the second moment
        weight_decay=0.1,  # adamw only: decoupled, on matrices; never on the architecture
        clip=1.0,  # bound of the gradient's global norm; 0 for none
        schedule="trapezoid",  # constant, cosine, linear, trapezoid: multiplier of the learning rate
        warmup=50,  # steps of linear warm-up
        cooldown=0.5,  # trapezoid: fraction of the steps that falls
        floor=0.02,  # multiplier at the end
    )
    return ml_collections.ConfigDict(fields | changes)


def architecture_optimizer(**changes) -> ml_collections.ConfigDict:
    """The optimizer of shared functions: slow moments, no decay, no clipping, a linear fall to 0."""
    slow = dict(name="adam", b1=0.99, b2=0.999, weight_decay=0.0, clip=0.0, schedule="linear", floor=0.0)
    return optimizer(**slow | changes)


def transformer(**changes) -> ml_collections.ConfigDict:
    """A Transformer; vocabulary, outputs, length and answers come from the task."""
    fields = dict(
        name="decoder",  # decoder (causal) or encoder
        layers=1,  # L
        width=32,  # D
        heads=4,  # H; divides width
        kv_heads=config_dict.placeholder(int),  # heads of k and v (grouped); none: H
        hidden=config_dict.placeholder(int),  # F, hidden width of the MLP; none: 4 D
        gated=False,  # GLU form: f(W1 x) * W3 x
        norm="layernorm",  # layernorm, rmsnorm, none
        positions="learned",  # learned, rope, alibi, none
        rope_fraction=1.0,  # part of the head that turns
        qk_norm=False,  # RMS-normalise q and k
        pre_activation_norm=False,  # RMS-normalise what the MLP's function receives
        skip=True,  # residual connections
        mlp=True,  # MLP after each attention
        bias=True,  # biases of linear layers
        tied=False,  # readout is the embedding
        embedding_std=0.5,  # standard deviation of tokens and positions at the start
        score="softmax",  # score function of the attention
        score_in="params",  # a learnable score function learns with the weights (params) or as architecture (arch)
        dtype="float32",  # float32 or bfloat16 for activations; weights and scores are float32
        remat=False,  # recompute blocks in the backward pass
        attention_backend="auto",  # auto, dense, blockwise, pallas_gpu, pallas_tpu
    )
    return ml_collections.ConfigDict(fields | changes)


def mlp(**changes) -> ml_collections.ConfigDict:
    """The small MLP model."""
    fields = dict(
        name="mlp",
        width=32,  # D of each position's embedding; 0 reads bits as signs
        hidden=128,  # F
        layers=1,  # hidden layers
        pre_activation_norm=False,  # RMS-normalise what the function receives
        embedding_std=0.1,  # standard deviation of the embeddings at the start
    )
    return ml_collections.ConfigDict(fields | changes)


def spline(**changes) -> ml_collections.ConfigDict:
    """A learnable function; an activation's name with no further field is a fixed one."""
    fields = dict(
        name="spline",
        knots=32,  # K, evenly spaced
        low=-4.0,  # position of the first knot
        high=4.0,  # position of the last knot
        extrapolation="constant",  # outside: constant or linear
        init="gelu",  # constant, or any activation's name
        constant=0.01,  # value of every knot for init constant
    )
    return ml_collections.ConfigDict(fields | changes)


def get_config() -> ml_collections.ConfigDict:
    """The default: 10-bit parity, a 1-layer Transformer."""
    return ml_collections.ConfigDict(
        dict(
            experiment="two_stage",  # two_stage: learn, freeze, judge; train: one model or several, nothing learned
            task=dict(name="parity", seed=0, bits=10),  # name and options of the task; seed fixes its splits
            model=transformer(),  # or mlp()
            functions=dict(
                mlp=spline(),  # the MLP's function
                attention=spline(),  # the attention's function, where attention_place is not none
                attention_place="none",  # none, score, feature, pre_qkv
                sharing="all_layers",  # all_layers, per_layer, middle_layers, per_channel
                smoothness=0.0,  # weight of the summed squared second differences of the knots in the loss
                polynomial_degree=0,  # > 0: stage 2 also judges a polynomial fitted to the learned function
                load="",  # skip stage 1: a run's functions/NAME folder, a function's .json, or a published .csv
            ),
            stage1=dict(
                seeds=(0,),  # one search each; replica r of search s has seed 1000 s + r
                replicas=8,  # R, models that share the architecture
                steps=1000,  # steps of the search
                batch_size=128,  # B, examples a step and replica, and held-out examples a step
                mode="held_out",  # held_out: architecture learns from held-out examples; joint: from the same batch
                stagger=0.0,  # replica r starts at r/R of this fraction of the steps
                restart_every=0,  # steps after which a replica is re-initialised, at phase r/R; 0: never
                learning_rate=3e-3,  # peak, weights
                optimizer=optimizer(schedule="constant"),  # of the weights
                arch_learning_rate=0.02,  # peak, architecture, in units of the knots' values
                arch_optimizer=architecture_optimizer(),  # of the functions
                accumulate=1,  # micro-batches a step
                eval_every=50,  # steps between evaluations, and in one dispatch
            ),
            stage2=dict(
                replicas=8,  # fresh seeds of every condition
                first_seed=100_000,  # their seeds are first_seed, first_seed + 1, …
                steps=1000,  # steps of each model
                batch_size=128,  # B, examples a step and replica
                learning_rates=(3e-3, 1e-2),  # swept for every condition; validation accuracy selects
                optimizer=optimizer(),  # of the weights
                accumulate=1,  # micro-batches a step
                eval_every=50,  # steps between evaluations, and in one dispatch
            ),
            baselines=("gelu", "relu"),  # fixed activations judged beside the learned function
            variants={},  # NAME: fields of this config that a search changes, e.g. {"stage1": {"replicas": 1}}
            targets={"same": {}},  # NAME: fields that stage 2 changes, e.g. {"task": {"train_fraction": 0.35}}
            threshold=0.99,  # accuracy that steps_to_99 waits for
            checkpoint_every=500,  # steps between checkpoints; a multiple of eval_every
            mesh=dict(data=1, model=1),  # devices along these axes; the rest go to the replicas
            replica_mapping="auto",  # vmap, map (one replica after another), auto: map on CPU
        )
    )
