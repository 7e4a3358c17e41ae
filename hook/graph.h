/* graph.h: executable graphs and their launches. */
#ifndef GFAAS_GRAPH_H
#define GFAAS_GRAPH_H

#include "hook.h"

#pragma GCC visibility push(hidden)

void gf_graph_fork_child(void);

#pragma GCC visibility pop
#endif
