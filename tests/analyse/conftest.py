"""Its being here puts this folder on the path, so that the files of ``scenarios/`` find what they share with the others."""
