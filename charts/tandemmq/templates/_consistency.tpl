{{/* The consistency job: what its CronJobs, or ScheduledSparkApplications, have in common. */}}

{{/* Its tiers with `runner` of this kind: (list root kind). YAML with the one key `tiers`. */}}
{{- define "tandemmq.consistencyTiers" -}}
{{- $found := list }}
{{- $consistency := (index . 0).Values.consistency }}
{{- range list "quick" "deep" }}
{{- if and $consistency.enabled (eq (index $consistency .).runner (index $ 1)) }}{{ $found = append $found . }}{{ end }}
{{- end }}
{{- dict "tiers" $found | toYaml }}
{{- end }}

{{/* Name of whatever belongs to the job, with a suffix: (list root suffix). */}}
{{- define "tandemmq.consistencyName" -}}
{{ include "tandemmq.fullname" (index . 0) }}-consistency{{ index . 1 }}
{{- end }}

{{/* Whether results are on a volume of a claim: "true" or "". */}}
{{- define "tandemmq.consistencyClaimed" -}}
{{- with .Values.consistency }}{{ if and .enabled .results.persistence.enabled (not .results.uri) }}true{{ end }}{{ end }}
{{- end }}

{{- define "tandemmq.consistencyClaim" -}}
{{- default (include "tandemmq.consistencyName" (list . "")) .Values.consistency.results.persistence.existingClaim }}
{{- end }}

{{/* A size as Spark writes it: 512Mi is 512m. */}}
{{- define "tandemmq.sparkSize" -}}
{{- . | replace "Mi" "m" | replace "Gi" "g" }}
{{- end }}

{{/* The job's settings: (dict root tier). Address and name of the driver's pod come by variables. */}}
{{- define "tandemmq.consistencySettings" }}
{{- $ := .root }}
{{- $consistency := $.Values.consistency }}
{{- $tier := index $consistency .tier }}
{{- $executors := $consistency.executors }}
clusterName={{ $.Values.clusterName }}
tier={{ .tier }}
{{- if $tier.volumes }}
path=/var/lib/tandemmq/replicas
{{- else }}
namesrvAddr={{ include "tandemmq.nameServers" $ }}
{{- end }}
results={{ default "/var/lib/tandemmq/results" $consistency.results.uri }}
deadline={{ div (mul $tier.deadlineSeconds 9) 10 }}
kubernetesResults={{ include "tandemmq.consistencyName" (list $ "") }}
kubernetesEvents=true
statefulSetPrefix={{ include "tandemmq.fullname" $ }}-
kubernetesNamespace={{ include "tandemmq.namespace" $ }}
driverMemory={{ include "tandemmq.sparkSize" $consistency.driver.heap }}
{{- if $executors.count }}
sparkMaster=k8s://https://kubernetes.default.svc
driverPort=7078
blockManagerPort=7079
executorInstances={{ $executors.count }}
executorCores={{ $executors.cores }}
executorMemory={{ include "tandemmq.sparkSize" $executors.heap }}
executorMemoryOverhead={{ include "tandemmq.sparkSize" $executors.pythonMemory }}
executorImage={{ include "tandemmq.image" (list $ $consistency.image) }}
executorPodTemplate=/etc/tandemmq/executor.yaml
executorServiceAccount={{ include "tandemmq.serviceAccount" (list $ "consistency" $consistency.serviceAccount) }}
{{- else }}
sparkMaster=local[*]
{{- end }}
{{- $pairs := list }}
{{- range $key, $value := include "tandemmq.sparkConf" $ | fromYaml }}{{ $pairs = append $pairs (printf "%s=%s" $key $value) }}{{ end }}
{{- with $pairs }}
sparkConf={{ join ";" . }}
{{- end }}
{{- include "tandemmq.properties" (mergeOverwrite (deepCopy $consistency.settings) $tier.settings) }}
{{- end }}

{{/*
Settings of Spark that the job has no name for, as YAML. useDriverPodIP would hand executors the address the driver listens
on, which is all of them; they are told the pod's as the driver's host.
*/}}
{{- define "tandemmq.sparkConf" -}}
{{- $executors := .Values.consistency.executors }}
{{- $conf := dict }}
{{- if $executors.count }}
  {{- $conf = dict
        "spark.authenticate" "true"
        "spark.network.crypto.enabled" "true"
        "spark.kubernetes.container.image.pullPolicy" .Values.image.pullPolicy
        "spark.kubernetes.executor.podTemplateContainerName" "executor"
        "spark.kubernetes.executor.request.cores" ($executors.cpuRequest | toString)
        "spark.kubernetes.executor.disableConfigMap" "true"
        "spark.kubernetes.executor.useDriverPodIP" "false"
        "spark.kubernetes.driver.service.deleteOnTermination" "false"
        "spark.kubernetes.driver.ownPersistentVolumeClaim" "false"
        "spark.kubernetes.driver.reusePersistentVolumeClaim" "false" }}
  {{- with $executors.cpuLimit }}{{ $_ := set $conf "spark.kubernetes.executor.limit.cores" (toString .) }}{{ end }}
{{- end }}
{{- toYaml (mergeOverwrite $conf .Values.consistency.sparkConf) }}
{{- end }}

{{/* The pod of a run, which is Spark's driver: (dict root tier options). */}}
{{- define "tandemmq.consistencyTemplate" }}
{{- $ := .root }}
{{- $consistency := $.Values.consistency }}
{{- $spread := gt (int $consistency.executors.count) 0 }}
{{- $annotations := dict "tandemmq.io/consistency.conf" (include "tandemmq.consistencySettings" . | trim) }}
{{- if $spread }}
  {{- $options := include "tandemmq.podOptions" (list $.Values.pod $consistency.pod $consistency.executors.pod) | fromYaml }}
  {{- $text := include "tandemmq.executorTemplate" (dict "root" $ "tier" .tier "options" $options) }}
  {{- $_ := set $annotations "tandemmq.io/executor.yaml" (printf "apiVersion: v1\nkind: Pod\n%s" (include "tandemmq.patchedTemplate" (list $text $options))) }}
{{- end }}
metadata:
  {{- include "tandemmq.podMetadata" (list $ "consistency" .options (dict "tandemmq.io/tier" .tier) $annotations) | nindent 2 }}
spec:
  restartPolicy: Never
  serviceAccountName: {{ include "tandemmq.serviceAccount" (list $ "consistency" $consistency.serviceAccount) | quote }}
  automountServiceAccountToken: true
  # A run that is ended writes down what it has found so far.
  terminationGracePeriodSeconds: 60
  {{- include "tandemmq.podSpec" (list $ .options (include "tandemmq.consistencyAffinity" $ | fromYaml) list) | nindent 2 }}
  containers:
    - name: consistency
      {{- include "tandemmq.container" (list $ .options $consistency.image) | nindent 6 }}
      {{- if not $.Values.diagnosticMode.enabled }}
      args: [--config, /etc/tandemmq/consistency.conf]
      {{- end }}
      env:
        - name: LOG_LEVEL
          value: {{ $.Values.logLevel }}
        {{- if $spread }}
        # Executors reach the run by its address, and are removed with its pod.
        - name: TANDEMMQ_DRIVER_HOST
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - name: TANDEMMQ_DRIVER_POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- end }}
        {{- include "tandemmq.serviceTlsEnvironment" $ | nindent 8 }}
        {{- with .options.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if $spread }}
      ports:
        - {name: spark-driver, containerPort: 7078}
        - {name: spark-blocks, containerPort: 7079}
      {{- end }}
      resources:
        {{- toYaml $consistency.driver.resources | nindent 8 }}
      volumeMounts:
        - {name: settings, mountPath: /etc/tandemmq, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- include "tandemmq.serviceTlsMount" $ | nindent 8 }}
        {{- if not $consistency.results.uri }}
        - {name: results, mountPath: /var/lib/tandemmq/results}
        {{- end }}
        {{- include "tandemmq.replicaMounts" . | nindent 8 }}
        {{- with .options.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: settings
      downwardAPI:
        items:
          {{- range $key := keys $annotations | sortAlpha }}
          - {path: {{ trimPrefix "tandemmq.io/" $key }}, fieldRef: {fieldPath: "metadata.annotations['{{ $key }}']"}}
          {{- end }}
    - {name: tmp, emptyDir: {}}
    {{- include "tandemmq.serviceTlsVolume" (list $ "consistency") | nindent 4 }}
    {{- if include "tandemmq.consistencyClaimed" $ }}
    - {name: results, persistentVolumeClaim: {claimName: {{ include "tandemmq.consistencyClaim" $ | quote }}}}
    {{- else if not $consistency.results.uri }}
    - {name: results, emptyDir: {}}
    {{- end }}
    {{- include "tandemmq.replicaVolumes" . | nindent 4 }}
    {{- with .options.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/*
A pod of its executors: (dict root tier options). Spark adds name, owner, memory, CPU, ports, and the argument `executor`.
It asks nobody for anything but the run and the brokers: no token.
*/}}
{{- define "tandemmq.executorTemplate" }}
{{- $ := .root }}
{{- $consistency := $.Values.consistency }}
metadata:
  {{- include "tandemmq.podMetadata" (list $ "consistency-executor" .options (dict "tandemmq.io/tier" .tier) dict) | nindent 2 }}
spec:
  restartPolicy: Never
  serviceAccountName: {{ include "tandemmq.serviceAccount" (list $ "consistency" $consistency.serviceAccount) | quote }}
  automountServiceAccountToken: false
  {{- include "tandemmq.podSpec" (list $ .options dict (include "tandemmq.brokerSpread" (include "tandemmq.selector" (list $ "consistency-executor")) | fromYamlArray)) | nindent 2 }}
  containers:
    - name: executor
      {{- include "tandemmq.container" (list $ .options $consistency.image) | nindent 6 }}
      {{- if not $.Values.diagnosticMode.enabled }}
      command: [mqconsistency-executor]
      {{- end }}
      env:
        - name: LOG_LEVEL
          value: {{ $.Values.logLevel }}
        {{- include "tandemmq.serviceTlsEnvironment" $ | nindent 8 }}
        {{- with .options.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- include "tandemmq.serviceTlsMount" $ | nindent 8 }}
        {{- include "tandemmq.replicaMounts" . | nindent 8 }}
        {{- with .options.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - {name: tmp, emptyDir: {}}
    {{- include "tandemmq.serviceTlsVolume" (list $ "consistency") | nindent 4 }}
    {{- include "tandemmq.replicaVolumes" . | nindent 4 }}
    {{- with .options.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- /* A volume that one node at a time may mount: the runs of both tiers go to one. */}}
{{- define "tandemmq.consistencyAffinity" }}
{{- if and (include "tandemmq.consistencyClaimed" .) (not (has "ReadWriteMany" .Values.consistency.results.persistence.accessModes)) }}
podAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "tandemmq.selector" (list . "consistency") | nindent 10 }}
{{- end }}
{{- end }}

{{- /* Replicas that are read from volumes, as <group>/<broker id>. */}}
{{- define "tandemmq.replicaMounts" }}
{{- range $i, $volume := (index .root.Values.consistency .tier).volumes }}
- {name: replica-{{ $i }}, mountPath: /var/lib/tandemmq/replicas/{{ .group }}/{{ .brokerId }}, subPath: {{ default "store" .path | quote }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "tandemmq.replicaVolumes" }}
{{- range $i, $volume := (index .root.Values.consistency .tier).volumes }}
- {name: replica-{{ $i }}, persistentVolumeClaim: {claimName: {{ .claimName | quote }}, readOnly: true}}
{{- end }}
{{- end }}
