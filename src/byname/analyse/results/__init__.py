"""Results of analysers: shown as tables, frames, labelled arrays and plots."""
