"""Continuous batching over paged KV: scheduler, pools, runner, sampler."""
