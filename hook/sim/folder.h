/* folder.h: the folder in which processes share devices, and the files in it. */
#pragma once

#include "sim.h"

#define SIM_NAME 64 /* bytes of a file's name */

/* Opens the folder. Returns -1 and sets errno on failure. */
int shared_open_dir(void);
/* Opens a file of the folder with the flags of open(2). Returns -1 and sets errno on failure. */
int shared_open(const char *name, int flags);
/* Opens a file of the folder to read and write it. Returns -1 and sets errno on failure. */
int shared_open_file(const char *name);
void shared_remove_file(const char *name);
/* Reports whether the name still refers to the opened file. */
bool shared_is_current(int fd, const char *name);
/* Moves a descriptor to a number of 40 or above and returns that, or fd if it fails. */
int shared_move_up(int fd);
/* Stores the name of the state file of the device with that index. */
void shared_state_name(char name[SIM_NAME], int index);
