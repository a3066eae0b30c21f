"""Tables, plots and files of what runs have shown."""
