// SPDX-License-Identifier: GPL-2.0
/*
 * path.c - the paths that are loaded, one for each kind of lane.
 *
 * Owns the list of paths. It changes under @path_mutex and the core mutex
 * both, so holding either is enough to read it. Lock order: @path_mutex, then
 * RTNL (in a path's directory_changed), then the core mutex.
 */
#include "core.h"

#define PATHS_MAX	8	/* one for each kind, so far */

static const struct vmloop_path *paths[PATHS_MAX];
static DEFINE_MUTEX(path_mutex);

/**
 * vmloop_path_find() - the path that serves a kind of lane
 * @kind: VMLOOP_LANE_*
 *
 * Context: core mutex held.
 * Return: the path, or NULL.
 */
const struct vmloop_path *vmloop_path_find(u32 kind)
{
	lockdep_assert_held(&vmloop_mutex);
	return kind < PATHS_MAX ? paths[kind] : NULL;
}

static void changed_work(struct work_struct *work)
{
	unsigned int i;

	mutex_lock(&path_mutex);
	for (i = 0; i < PATHS_MAX; i++)
		if (paths[i])
			paths[i]->directory_changed();
	mutex_unlock(&path_mutex);
}

static DECLARE_WORK(changed, changed_work);

/**
 * vmloop_paths_directory_changed() - tell the paths that the directory changed
 *
 * Context: any; they are told later, from the core's workqueue.
 */
void vmloop_paths_directory_changed(void)
{
	queue_work(vmloop_workqueue, &changed);
}

/**
 * vmloop_path_register() - a path is loaded
 * @path: stays until vmloop_path_unregister()
 *
 * Context: process context; takes the core mutex.
 * Return: 0; -EBUSY if that kind of lane has a path already; -EINVAL for a
 * kind that does not exist.
 */
int vmloop_path_register(const struct vmloop_path *path)
{
	int err = 0;

	if (path->kind == VMLOOP_LANE_NONE || path->kind >= PATHS_MAX)
		return -EINVAL;

	mutex_lock(&path_mutex);
	mutex_lock(&vmloop_mutex);
	if (paths[path->kind])
		err = -EBUSY;
	else
		paths[path->kind] = path;
	if (!err)
		vmloop_channels_adopt(NULL);
	mutex_unlock(&vmloop_mutex);
	mutex_unlock(&path_mutex);
	if (!err)
		vmloop_paths_directory_changed();
	return err;
}
EXPORT_SYMBOL_GPL(vmloop_path_register);

/**
 * vmloop_path_unregister() - a path is about to be unloaded
 * @path: registered before
 *
 * Its channels are drained and ended. After return none of its callbacks runs
 * or will run.
 *
 * Context: process context; takes the core mutex; RTNL not held.
 */
void vmloop_path_unregister(const struct vmloop_path *path)
{
	mutex_lock(&path_mutex);
	mutex_lock(&vmloop_mutex);
	paths[path->kind] = NULL;
	vmloop_channels_end(path);
	mutex_unlock(&vmloop_mutex);
	mutex_unlock(&path_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_path_unregister);

void vmloop_path_exit(void)
{
	cancel_work_sync(&changed);
}
