"""Parity of 10 bits: a 1-layer Transformer that GELU cannot teach and a learned spline can."""

import ml_collections

from configs import default


def get_config() -> ml_collections.ConfigDict:
    config = default.get_config()
    config.task = dict(name="parity", seed=0, bits=10, train_fraction=0.6, validation_fraction=0.1, test_fraction=0.3)
    config.model = default.transformer(hidden=64, pre_activation_norm=True, norm="rmsnorm")
    config.functions.mlp = default.spline(init="constant")
    config.functions.smoothness = 1e-3
    config.stage1.update(dict(seeds=(0, 1), replicas=8, steps=800))
    config.stage2.update(dict(replicas=16, steps=1000))
    return config
