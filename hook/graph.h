/* graph.h: executable graphs and their launches. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

void gf_graph_fork_child(void);

#pragma GCC visibility pop
