"""The rules of the contract. A rule takes the facts and yields findings; a new one is a function in the file
of its subject and an entry in :data:`RULES`.
"""

from __future__ import annotations

from typing import Tuple

from . import attention, config, engine, layers, mask, weights
from .common import Rule

RULES: Tuple[Rule, ...] = (
    config.config_is_there,
    config.config_is_its_own,
    config.architecture,
    mask.mask_is_there,
    mask.mask_is_where_it_is_read,
    mask.mask_is_a_row,
    mask.mask_means_mask,
    mask.tokenizer_is_known,
    layers.layer_ids_are_there,
    layers.layer_ids_are_layers,
    layers.layer_ids_avoid_the_last_on_sglang,
    layers.layer_ids_are_unique,
    layers.layer_ids_fit_fc,
    layers.layer_ids_are_usual,
    layers.target_depth,
    weights.weights_are_complete,
    weights.config_describes_weights,
    weights.widths_agree,
    weights.vocabularies_agree,
    attention.block_is_known,
    attention.block_holds_the_draft,
    attention.rope_theta_is_there,
    attention.rope_thetas_agree,
    attention.rope_theta_is_the_targets,
    attention.drafter_reaches,
    engine.engine_reads_it_right,
)
