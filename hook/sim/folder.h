/* folder.h: the folder in which processes share devices, and the files in it. */
#ifndef GFAAS_SIM_FOLDER_H
#define GFAAS_SIM_FOLDER_H

#include "sim.h"

#define SIM_NAME 64 /* bytes of a file's name */

int shared_open_dir(void); /* -1 with errno set */
/* A file of the folder, with the flags of open(2); -1 with errno set. */
int shared_open(const char *name, int flags);
int shared_open_file(const char *name); /* to read and write; -1 if there is none */
void shared_remove_file(const char *name);
bool shared_still_there(int fd, const char *name);
int shared_move_up(int fd); /* away from the low numbers; takes fd over */
void shared_state_name(char name[SIM_NAME], int index);

#endif
