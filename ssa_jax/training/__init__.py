"""The train step of both stages and what runs it: state, loop, optimizers, schedules, checkpoints, mesh."""
