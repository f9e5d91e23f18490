def finish(folder, machine, framework):
    return []
